"""A text that people read, in English and Chinese beside each other, with named fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self


class Phrase(str):
    """A text in English that has the same in Chinese with it; it may be put together with others by ``+``."""

    __slots__ = ("zh",)
    zh: str

    def __new__(cls, en: str, zh: str = "") -> Self:
        """Return the text; without Chinese, as a name has none, it is the same in both languages."""
        phrase = super().__new__(cls, en)
        phrase.zh = zh or en
        return phrase

    def __reduce__(self) -> tuple[type[Phrase], tuple[str, str]]:
        """Return what a copy in another process is made of."""
        return Phrase, (str(self), self.zh)

    def __add__(self, other: str) -> Phrase:
        """Return both texts, one behind the other."""
        return Phrase(f"{self}{other}", f"{self.zh}{chinese(other)}")


class Message:
    """A text with named fields, in English and Chinese.

    Args:
        en: English format string.
        zh: Chinese format string, with the same fields.
    """

    def __init__(self, en: str, zh: str) -> None:
        self.en, self.zh = en, zh

    def text(self, fields: Mapping[str, Any], language: Literal["en", "zh"] = "en") -> str:
        """Return the message with its fields filled in."""
        return (self.zh if language == "zh" else self.en).format(**fields)

    def __call__(self, **fields: Any) -> Phrase:
        """Return the message with its fields filled in, in both languages."""
        return Phrase(self.text(fields), self.text({name: chinese(value) for name, value in fields.items()}, "zh"))


def chinese(value: Any) -> Any:
    """Return a value as a Chinese text has it: a phrase in Chinese, everything else as it is."""
    return value.zh if isinstance(value, Phrase) else value


def in_language_of(value: Any, language: Literal["en", "zh"]) -> str:
    """Return a text in a language: a phrase in that one, everything else as it is."""
    return str(chinese(value) if language == "zh" else value)


def joined(phrases: list[Phrase], en: str = ", ", zh: str = "\u3001") -> Phrase:
    """Return phrases one behind the other, with a mark between each two."""
    return Phrase(en.join(phrases), zh.join(phrase.zh for phrase in phrases))
