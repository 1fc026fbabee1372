"""Headings and single words of the doctor's reports, in both languages."""

from __future__ import annotations

from pathlib import Path

from levelhead.diagnosis.chinese import said
from levelhead.diagnosis.findings import Language, read_texts
from levelhead.doctor.table import Table

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
