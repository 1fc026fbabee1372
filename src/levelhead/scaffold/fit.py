"""What a new recipe must say so that its run fits the machine: an adapter, or fewer tokens at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from levelhead.errors import InputError
from levelhead.recipe import Recipe

LARGE = 1_000_000_000
"""Weights above which an adapter is trained even where all weights would fit."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Settings that make a run fit.

    Attributes:
        settings: Dotted keys of the recipe and their values.
        note: What was planned, in a line; empty where nothing was.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def under(self, prefix: str) -> dict[str, Any]:
        """Return the settings of one section, by their last name."""
        keys = {key.removeprefix(prefix): value for key, value in self.settings.items() if key.startswith(prefix)}
        return {key: value for key, value in keys.items() if "." not in key}


def fit(recipe: Recipe, gpu: str | None, longest_prompt: int | None) -> Fit:
    """Plan a recipe's memory from the config of its model, without weights, and look for settings with which it fits.

    Args:
        recipe: As it would be written.
        gpu: Memory of the GPU that will train, as ``24GB``; this machine's device unless given.
        longest_prompt: Of the data, in tokens.

    Raises:
        InputError: ``gpu`` is no size.
    """
    try:
        from levelhead.preflight.plan import read_size
        from levelhead.preflight.plan_change import ADAPTER, changed, make_plan
    except ImportError:
        return Fit(note="not planned: torch is not installed")
    if gpu is not None:
        read_size(gpu)
    settings: dict[str, Any] = {}
    try:
        adapted = changed(recipe, {"model.lora": ADAPTER})
        plan, change = make_plan(adapted, gpu, longest_prompt)
        if plan.parameters > LARGE:
            settings = {"model.lora": ADAPTER}
        else:
            plan, change = make_plan(recipe, gpu, longest_prompt)
    except InputError as error:
        return Fit(note=f"not planned: {str(error).splitlines()[0]}")
    total, fits = plan.total, plan.fits
    if change is not None:
        settings, total, fits = {**settings, **change.settings}, change.total, change.fits
    room = "an unknown amount" if plan.target.room is None else f"{plan.target.room / 2**30:.1f} GiB"
    word = "does not fit: " if fits is False else ""
    return Fit(settings, f"{word}{total / 2**30:.1f} GiB of {room} ({plan.target.name})")
