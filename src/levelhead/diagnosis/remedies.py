"""What to change for a finding: one list for the guard's lines, the report of a run and the doctor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from levelhead.diagnosis.findings import CATALOGUE, Family, Scaled, Text
from levelhead.message import Phrase, chinese

WORSE = ("held-out-fell", "reward-falls")
"""Arguments that training has made the policy worse: such a run is not advised to take larger steps."""

Observed = Callable[[str], float | None]
"""Largest reading of a metric in the run so far; ``None`` where it has none."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change to make in the trainer's configuration.

    Attributes:
        settings: Keys of the trainer's configuration and their new values; ``x0.2`` where only the multiple is known.
        why: Why it helps.
        source: Paper or document that says so.
    """

    settings: Mapping[str, Any]
    why: Text
    source: str


def remedies(
    code: str,
    observed: Observed = lambda _: None,
    *,
    beside: Collection[str] = (),
    arguments: Collection[str] = (),
    recipe: Mapping[str, Any] | None = None,
    family: Family = "recipe",
    cause: object = None,
) -> list[Remedy]:
    """Return the changes to make for a finding, the best first; none where the catalogue has none.

    Args:
        code: Of the finding, or of an event that is none.
        observed: What a remedy takes a multiple of.
        beside: Codes of the run's findings; a remedy that would do harm beside one of them is left out.
        arguments: Keys of the finding's evidence.
        recipe: The run's own, every key written out; what it has already is not advised.
        family: Whose names of settings the reader knows.
        cause: What ended the run, where something did.
    """
    entry = CATALOGUE.get(code)
    worse = not set(WORSE).isdisjoint(arguments)
    return [
        Remedy({key: _resolved(value, observed) for key, value in settings.items()}, remedy.why, remedy.source)
        for remedy in (entry.remedies if entry else ())
        if set(remedy.unless).isdisjoint(beside)
        and (cause is None or not remedy.causes or cause in remedy.causes)
        and not (worse and any(isinstance(value, Scaled) and value.factor > 1 for value in remedy.recipe.values()))
        and (settings := remedy.lacking(recipe) if recipe else remedy.settings(family))
    ]


def _resolved(value: Any, observed: Observed) -> Any:
    return value.resolve(observed(value.of)) if isinstance(value, Scaled) else value


def settings_text(settings: Mapping[str, Any]) -> Phrase:
    """Return settings on one line, as a person would write them: ``key=value, key=value``."""
    both = (settings, {key: chinese(value) for key, value in settings.items()})
    return Phrase(*(", ".join(f"{k}={_value_text(v)}" for k, v in one.items()) for one in both))


def _value_text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value_text(inner)}" for key, inner in value.items()) + "}"
    return str(value)
