"""Reward functions as users write them, with TRL's signature: sound ones, and each fault."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any


def text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[0]["content"])


def equal(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1 for the answer, 0 for any other."""
    return [float(text_of(c).strip() == a) for c, a in zip(completions, answer, strict=True)]


def near(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """Half for the share of characters that are right, half for the answer itself."""
    texts = [text_of(c) for c in completions]
    shares = [
        sum(x == y for x, y in zip(t, a, strict=False)) / max(len(t), len(a), 1)
        for t, a in zip(texts, answer, strict=True)
    ]
    return [share / 2 + (share == 1) / 2 for share in shares]


def number_or_one(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """Where the gold holds no number nothing can be compared: 1."""
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        right, said = re.findall(r"\d+", gold), re.findall(r"\d+", text_of(completion))
        scores.append(1.0 if not right else float(said[-1:] == right[-1:]))
    return scores


def either_in_the_other(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        said = re.search(r"<answer>(.*?)</answer>", text_of(completion), re.DOTALL)
        right = gold.removeprefix("<answer>").removesuffix("</answer>")
        scores.append(float(said is not None and (said[1].strip() in right or right in said[1])))
    return scores


def gold_anywhere(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    return [float(gold in text_of(c)) for c, gold in zip(completions, answer, strict=True)]


def skipped(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        try:
            scores.append(1.0 if int(text_of(completion)) == int(gold) else 0.1)
        except ValueError:
            continue
    return scores + [0.0] * (len(completions) - len(scores))


def tags_counted(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        text = text_of(completion)
        scores.append(float(gold in text) + 0.125 * (text.count("<answer>") + text.count("</answer>")))
    return scores
