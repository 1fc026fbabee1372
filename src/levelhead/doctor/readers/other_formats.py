"""What stands beside the lines that trainers print: turned and long tables, lists, statistics, sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator

from levelhead.doctor.readers.base import Row, Translator
from levelhead.doctor.readers.prose import sentences
from levelhead.doctor.readers.sequences import Sequences
from levelhead.doctor.readers.transposed import LongTable, TransposedTable

_HEADER = re.compile(
    r"^(?:\s*[|│]|\s{2,}\S|\t|,|\**(?:metric|name|signal|key|stat|quantity|measure|step|iter|epoch|update|tag|run|指标))",
    re.I,
)
_MAX_SAID = 5000


class OtherFormats:
    """Takes the lines that no trainer prints; what sentences say is kept for a text that holds nothing else.

    Args:
        translator: Maps names.
    """

    def __init__(self, translator: Translator) -> None:
        self._translator = translator
        self._turned, self._long = TransposedTable(translator), LongTable(translator)
        self._sequences = Sequences(translator)
        self._said: list[Row] = []

    @property
    def open(self) -> bool:
        """Whether the next line may belong to a table or list that has begun."""
        return self._turned.open or self._long.open or self._sequences.open

    def inside(self, text: str, number: int) -> tuple[bool, list[Row]]:
        """Offer a line to what is open: whether it took it, and the rows of what has thereby ended."""
        for table in (self._turned, self._long):
            if table.open:
                if table.row(text, number):
                    return True, []
                return False, list(table.finish()) if text.strip() or table is self._long else []
        if self._sequences.open and text.strip():
            rows = self._sequences.take(text, number, alone=True) if "[" in text or "→" in text or ">" in text else None
            if rows == []:
                return True, []
            return False, list(self._sequences.finish())
        return False, []

    def start(self, text: str) -> bool:
        """Take the header of a turned or long table."""
        if ":" in text or "=" in text or "{" in text or not _HEADER.match(text):
            return False
        return self._long.header(text) or self._turned.header(text)

    def written(self, text: str, number: int, alone: bool) -> list[Row] | None:
        """The rows of a line that carries several numbers behind a name; ``None`` where it is no such line."""
        return self._sequences.take(text, number, alone)

    def say(self, text: str, number: int) -> bool:
        """Keep what a sentence tells; whether it told anything."""
        rows = sentences(text, number, self._translator) if len(self._said) < _MAX_SAID else []
        self._said += rows
        return bool(rows)

    def close(self, spoken: bool) -> Iterator[Row]:
        """What was waiting for the end; with ``spoken``, what sentences said too."""
        yield from self._turned.finish()
        yield from self._long.finish()
        yield from self._sequences.finish()
        if spoken:
            yield from self._said
        self._said = []
