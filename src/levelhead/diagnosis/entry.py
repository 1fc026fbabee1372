"""The shape of a finding in the catalogue: its texts in both languages and the changes that remedy it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from levelhead.records import Severity

Language = Literal["en", "zh"]
Settings = Mapping[str, Any]
Family = Literal["recipe", "trl", "verl"]


@dataclass(frozen=True, slots=True)
class Text:
    """A text in both languages."""

    en: str
    zh: str

    def get(self, language: Language = "en") -> str:
        """The text in ``language``."""
        return self.zh if language == "zh" else self.en


@dataclass(frozen=True, slots=True)
class Scaled:
    """A setting given as a multiple of what the log shows: ``Scaled(0.2, "learning_rate")``.

    Attributes:
        factor: The multiple.
        of: Canonical signal whose largest reading is multiplied.
        whole: Round to a whole number.
    """

    factor: float
    of: str
    whole: bool = False

    def resolve(self, observed: float | None) -> float | int | str:
        """The number, or ``"x0.2"`` where the log does not show what to multiply."""
        if observed is None or observed <= 0:
            return f"x{self.factor:g}"
        value = self.factor * observed
        return round(value) if self.whole else float(f"{value:.3g}")


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change to make.

    Attributes:
        why: Why it helps.
        source: Paper or document that says so.
        recipe: Keys of a Levelhead recipe.
        trl: Fields of TRL's ``GRPOConfig``.
        verl: Keys of verl's configuration.
        unless: Codes of findings beside which it would do harm; it is left out of a report that has one of them.
        causes: What must have ended the run for it to help (``authentication``, ``budget``); anything unless given.
    """

    why: Text
    source: str
    recipe: Settings
    trl: Settings
    verl: Settings
    unless: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()

    def settings(self, family: Family) -> Settings:
        """The change in the trainer's own words; the recipe's where the trainer has no such setting."""
        return {"trl": self.trl, "verl": self.verl}.get(family, self.recipe) or self.recipe


@dataclass(frozen=True, slots=True)
class Entry:
    """One finding.

    Attributes:
        code: Stable name.
        severity: How bad it is when it is sure.
        title: A few words.
        meaning: What it means for the run.
        mechanism: How it comes about, in two sentences.
        differs: How it is told from its look-alikes.
        confirm: What would confirm it.
        remedies: What to change, the best first.
        explains: Codes of findings that follow from this one.
        seen_by: Who can see it: logs show less than a live run or its set-up.
    """

    code: str
    severity: Severity
    title: Text
    meaning: Text
    mechanism: Text
    differs: Text
    confirm: Text
    remedies: tuple[Remedy, ...] = ()
    explains: tuple[str, ...] = ()
    seen_by: tuple[str, ...] = ("doctor", "guard")
