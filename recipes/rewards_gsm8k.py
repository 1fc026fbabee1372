"""Two rewards for GSM8K, with the signature that TRL uses: one value a completion."""

from __future__ import annotations

import re
from typing import Any

_FINAL = re.compile(r"####\s*(-?[\d,]*\.?\d+)")


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def _number(text: str) -> str | None:
    found = _FINAL.findall(text)
    return found[-1].replace(",", "") if found else None


def accuracy(completions: list[Any], answer: list[str], **columns: Any) -> list[float]:  # noqa: ARG001
    """1 where the final number is the data set's, else 0."""
    wanted = [_number(text) for text in answer]
    return [float(_number(_text(completion)) == want) for completion, want in zip(completions, wanted, strict=True)]


def brevity(completions: list[Any], **columns: Any) -> list[float]:  # noqa: ARG001
    """From 1 for an empty answer down to 0 at 1,000 characters."""
    return [max(0.0, 1 - len(_text(completion)) / 1000) for completion in completions]
