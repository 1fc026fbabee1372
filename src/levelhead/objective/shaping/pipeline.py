"""Reward shaping of one task: its steps in their fixed order."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from levelhead.objective.advantages.base import Array, check_rewards
from levelhead.objective.advantages.estimator import RewardBatch
from levelhead.objective.shaping.base import NEEDS, Shaper

State = Mapping[str, Mapping[str, Any]]
"""State of each step that has one, by its key, as JSON."""


@dataclass(frozen=True, slots=True)
class RewardShaping:
    """One task's reward shaping; the default changes nothing.

    Attributes:
        length: Applied first: a length penalty, or a shaper of the user's own.
        zscore: Applied next.
        scale: Factor applied next.
        clip: Lowest and highest reward that leaves, applied last.
    """

    length: Shaper | None = None
    zscore: Shaper | None = None
    scale: float = 1.0
    clip: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"scale must be finite and above 0, got {self.scale!r}")
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise ValueError(f"clip must be a lower and a higher bound, got {self.clip!r}")
        for shaper in self._steps().values():
            if unknown := sorted(shaper.needs - NEEDS):
                may = " or ".join(sorted(NEEDS))
                raise ValueError(f"{_label(shaper)} needs {unknown[0]!r}; a shaper may need {may}")

    @property
    def needs(self) -> frozenset[str]:
        """Fields of a :class:`RewardBatch`, besides the rewards, that the steps cannot do without."""
        return frozenset().union(*(shaper.needs for shaper in self._steps().values()))

    def __call__(self, batch: RewardBatch, state: State | None = None) -> tuple[Array, State]:
        """Return the shaped rewards, shape (groups, K), and the state after this batch.

        Args:
            batch: Rewards of one task, shape (groups, K), K >= 2, and what :attr:`needs` names.
            state: That of the batch before; ``None`` at the start.

        Raises:
            ValueError: Bad rewards, something needed is missing, or a shaper returns what is no rewards or no state.
        """
        xp, rewards_gk = check_rewards(batch.rewards_gk)
        after: dict[str, Mapping[str, Any]] = dict(state or {})
        for key, shaper in self._steps().items():
            if missing := [need for need in sorted(shaper.needs) if getattr(batch, need) is None]:
                raise ValueError(f"{_label(shaper)} needs {missing[0]}")
            before = after.get(key) or shaper.begin()
            result: Any = shaper.shape(replace(batch, rewards_gk=rewards_gk), before)
            if not (isinstance(result, tuple) and len(result) == 2):
                raise ValueError(f"{_label(shaper)}: shape must return the rewards and the state")
            rewards_gk = _checked(shaper, result[0], rewards_gk)
            after[key] = _plain(shaper, result[1])
        if self.scale != 1.0:
            rewards_gk = rewards_gk * self.scale
        if self.clip is not None:
            rewards_gk = xp.clip(rewards_gk, *self.clip)
        return rewards_gk, {key: own for key, own in after.items() if own}

    def _steps(self) -> dict[str, Shaper]:
        """The shapers by their key, in the order in which they are applied."""
        steps = {"length": self.length, "zscore": self.zscore}
        return {key: shaper for key, shaper in steps.items() if shaper is not None}


def _checked(shaper: Shaper, shaped_gk: Array, rewards_gk: Array) -> Array:
    shape = tuple(getattr(shaped_gk, "shape", ()))
    if shape != tuple(rewards_gk.shape):
        raise ValueError(f"{_label(shaper)}: shaped rewards need shape {tuple(rewards_gk.shape)}, got {shape}")
    try:
        return check_rewards(shaped_gk)[1]
    except ValueError as error:
        raise ValueError(f"{_label(shaper)}: {error}") from None


def _plain(shaper: Shaper, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state as a checkpoint would hold it."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(state)))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{_label(shaper)}: its state must be a dict of JSON values: {error}") from None
    return plain


def _label(shaper: Shaper) -> str:
    return f"length penalty {shaper.name!r}" if shaper.name else f"shaper {type(shaper).__name__}"
