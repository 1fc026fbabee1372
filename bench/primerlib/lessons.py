"""Lessons: which questions a part of the primer's texts asks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from levelhead.section import Section

PrimerKind = Literal[
    "copy", "pairs", "trace", "facts", "letters", "numbers", "recall", "who", "letter", "choose", "page"
]


KINDS: dict[PrimerKind, float] = {
    "copy": 0.03,
    "trace": 0.06,
    "facts": 0.1,
    "letters": 0.03,
    "numbers": 0.09,
    "recall": 0.18,
    "who": 0.14,
    "letter": 0.03,
    "choose": 0.22,
    "page": 0.12,
}
"""Shares of the kinds of question in a lesson that names none."""


class Lesson(Section):
    """A part of the primer's texts, of some kinds of question."""

    texts: int | None = Field(None, ge=1)
    """How many texts; all the others unless given."""
    kinds: dict[PrimerKind, float] = Field(default_factory=KINDS.copy, min_length=1)
    """Kinds of question and their relative shares of the texts."""
    people: Literal["names", "anyone"] = "anyone"
    """Whom the texts of ``trace`` and ``who`` are about: first ``names``, one word right before what they did, or
    ``anyone`` (``the poor guest``)."""
    rare: float = Field(0.0, ge=0, le=1)
    """Share of the words for people, things and what they are like that give way to words of the wider lexicon, so
    that every word of the tokenizer is read and written now and then."""
    reasoned: float = Field(0.0, ge=0, le=1)
    """Share of the ``letter`` texts about people that ask for a letter by a reason which names the person."""
    alike: float = Field(0.0, ge=0, le=1)
    """Share of the ``who`` and ``choose`` texts whose deeds differ in one word, and are asked for without their end."""
    given: float = Field(0.0, ge=0, le=1)
    """Share of the ``choose`` texts whose questions come with the reason, so that the letter alone is left to say."""
    judged: float = Field(0.3, ge=0, le=1)
    """Share of the ``choose`` texts that ask who did well or badly, in other words than the text's."""

    @field_validator("kinds")
    @classmethod
    def _shares_are_positive(cls, value: dict[PrimerKind, float]) -> dict[PrimerKind, float]:
        bad = [kind for kind, share in value.items() if not share > 0]
        if bad:
            raise ValueError(f"the share of {bad[0]!r} must be above 0; leave it out instead")
        return value
