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
        words: By field, what its values are called in English and Chinese: the field holds keys, one or a list.
    """

    def __init__(
        self, en: str, zh: str, fix: Fix | None = None, words: Mapping[str, Mapping[str, tuple[str, str]]] | None = None
    ) -> None:
        super().__init__(en, zh)
        self.fix, self._words = fix, words or {}
        self.key = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.key = self.key or name.strip("_").replace("_", "-")

    def text(self, fields: Mapping[str, Any], language: Language = "en") -> str:
        """Return the message with its fields filled in."""
        return super().text(
            {name: self._named(name, value, language == "zh") for name, value in fields.items()}, language
        )

    def _named(self, field: str, value: Any, zh: bool) -> Any:
        """Return what a value of a field is called."""
        if field not in self._words:
            return value
        words = [self._words[field][key][zh] for key in ([value] if isinstance(value, str) else value)]
        return ("、" if zh else ", ").join(words) or ("无" if zh else "none")

    def way_out(self, fields: Mapping[str, Any], language: Language = "en") -> str:
        """Return what to change; empty where nothing is wrong."""
        return "" if self.fix is None else self.fix[language == "zh"].format(**fields)
