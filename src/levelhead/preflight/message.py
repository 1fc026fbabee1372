"""A text that people read: named fields, English and Chinese beside each other, and the way out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from levelhead import message

if TYPE_CHECKING:
    from levelhead.diagnosis.findings import Language


class Fix(NamedTuple):
    """What to change, as format strings with the fields of its message."""

    en: str
    zh: str


class Message(message.Message):
    """A text with named fields, and what to do about it.

    As a class attribute of a check it knows its key, the attribute's name with dashes.

    Args:
        en: English format string.
        zh: Chinese format string, with the same fields.
        fix: What to change; ``None`` where nothing is wrong.
    """

    def __init__(self, en: str, zh: str, fix: Fix | None = None) -> None:
        super().__init__(en, zh)
        self.fix = fix
        self.key = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.key = self.key or name.strip("_").replace("_", "-")

    def way_out(self, fields: Mapping[str, Any], language: Language = "en") -> str:
        """Return what to change; empty where nothing is wrong."""
        return "" if self.fix is None else self.fix[language == "zh"].format(**fields)
