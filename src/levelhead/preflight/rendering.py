"""Token ids as quoted texts, and prompts as the tokenizer's own template renders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levelhead.text.codec import Codec
from levelhead.text.evidence import read


def spelled(codec: Codec, ids: Sequence[int]) -> str:
    """Return token ids as a line of quoted texts."""
    return " ".join(repr(token.text) for token in read(codec, ids)) or "-"


def by_template(codec: Codec, messages: Sequence[Mapping[str, Any]], *, generation: bool) -> str:
    """Render messages with the tokenizer alone."""
    chat = [dict(message) for message in messages]
    variables = codec.template.variables
    text = codec.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=generation, **variables)
    return str(text)


def parting(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return the first place at which two sequences differ."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
