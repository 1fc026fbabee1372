"""Tables of text beside a diagnosis, and the headings and single words of reports, in both languages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from levelhead.diagnosis.chinese import said
from levelhead.diagnosis.findings import Language, read_texts
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


LABELS = read_texts(Path(__file__).with_name("labels.yaml"), "labels")
"""By key."""


def in_language(table: Table, language: Language) -> Table:
    """Return a table with its title, its headings and the words of its first two columns in a language."""
    rows = tuple(tuple(said(cell, language) for cell in row[:2]) + row[2:] for row in table.rows)
    return Table(said(table.title, language), tuple(said(head, language) for head in table.header), rows)


_MARKS = {",": "\uff0c", ":": "\uff1a", ";": "\uff1b", "(": "\uff08", ")": "\uff09"}


def mark(sign: str, language: Language) -> str:
    """Return a mark of punctuation with the space that it has around it: one of ``,``, ``:``, ``;``, ``(``, ``)``."""
    if language == "zh":
        return _MARKS[sign]
    return {"(": " (", ")": ")"}.get(sign, f"{sign} ")


def in_brackets(text: str, language: Language) -> str:
    """Return text in brackets, to stand behind a word."""
    return f"{mark('(', language)}{text}{mark(')', language)}"


def since(step: object, language: Language) -> str:
    """Return since which step something stands: ``since step 12``."""
    return f"{label('since', language)} {step}" + (" 步" if language == "zh" else "")


def label(key: str, language: Language = "en") -> str:
    """A heading or word of a report."""
    return LABELS[key].get(language)
