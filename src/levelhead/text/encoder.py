"""Rendered text to token ids, with the place of each token in the text."""

from __future__ import annotations

import re

from transformers import PreTrainedTokenizerBase

from levelhead.errors import InputError
from levelhead.text.rendered import Rendered

_HALF = re.compile("[\ud800-\udfff]")


class Encoder:
    """Encodes rendered text with a tokenizer; adds no token of its own, and lets none reach across a cut.

    Args:
        tokenizer: The tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def encode(self, rendered: Rendered, *, continues: bool = False) -> list[int]:
        """Return the ids of a text; ``continues`` says that other text comes before it."""
        ids: list[int] = []
        for start, piece in rendered.pieces():
            lead, dropped = self._lead(piece) if start or continues else ("", 0)
            ids += self._ids(lead + piece)[dropped:]
        return ids

    def _ids(self, text: str) -> list[int]:
        _refuse_halves(text)
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _lead(self, text: str) -> tuple[str, int]:
        """Return what to encode before a text that is not the first of its sequence, and its number of tokens.

        Tokenizers of the SentencePiece kind put a space before the first word that they are given; behind a
        line break they do not.  Where the two would grow together, the text is encoded as it is.
        """
        line_break = self._ids("\n")
        count = len(line_break)
        return ("\n", count) if self._ids("\n" + text)[:count] == line_break else ("", 0)


def _refuse_halves(text: str) -> None:
    """Refuse half of a surrogate pair: JSON can spell it, and no tokenizer can encode it."""
    half = None if text.isascii() else _HALF.search(text)
    if half is not None:
        before = text[max(0, half.start() - 40) : half.start()]
        raise InputError(
            f"a text holds half of a surrogate pair (\\u{ord(half.group()):04x}) behind {before!r}, which no tokenizer "
            "can encode; repair the data"
        )
