"""Tables of text beside a diagnosis: what packages say of a log, on a terminal, on a page and in JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from levelhead.terminal import columns, padded


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a header and rows of text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def lines(self) -> list[str]:
        """Return the table as lines of text, its columns aligned."""
        rows = [self.header, *self.rows]
        widths = [max(columns(row[column]) for row in rows) for column in range(len(self.header))]
        shown = ["  ".join(map(padded, row, widths)).rstrip() for row in rows]
        return [self.title, *(f"  {line}" for line in shown)]


class Tabled(Protocol):
    """What an entry of ``levelhead.analyses`` returns for a log that it knows."""

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain values."""
        ...

    def tables(self) -> list[Table]:
        """Return the tables of a report."""
        ...
