"""What is left in English of a text that is shown in Chinese: every word but names, code, and terms of the field."""

from __future__ import annotations

import re
from collections.abc import Collection

WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.\-/\[\]=]*")
NAME = re.compile(r".*[_.\-/=\[\]].*")
"""A key of a configuration, a metric, a code of a finding, a path or a flag."""
TERMS = frozenset({
    "GRPO", "KL", "SFT", "token", "nat", "NaN", "LoRA", "TRL", "K", "RLHF", "detach", "None", "bfloat16", "bf16",
    "float16", "float32", "fp16", "SQLite", "logit", "oracle", "true", "false", "temperature", "grpo", "drop", "p",
})  # fmt: skip
"""Terms that Chinese readers of the field read in Latin letters, and values of keys."""


def english(shown: str, terms: Collection[str] = ()) -> set[str]:
    """Return the words of a text that are neither names nor terms.

    Args:
        shown: The text, without what it quotes.
        terms: Further ones that may stand in it.
    """
    words = {word.rstrip(".-/=") for word in WORD.findall(shown)}
    return {word for word in words if not NAME.fullmatch(word)} - TERMS - set(terms)
