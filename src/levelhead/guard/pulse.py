"""The few signals that the guard follows from step to step, and what they say about the policy's health."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levelhead import metrics as metric
from levelhead.diagnosis.stats import mean
from levelhead.guard.level import Fall, Level
from levelhead.guard.remedy import Climate
from levelhead.recipe.guard import Guard as Bounds

DEAD = 0.999
"""Share of groups without contrast from which a step teaches nothing."""
STILL = 1e-9
"""Gradient norm of a step that moves nothing."""
LOST_ENTROPY = 0.25
"""Share of the good weights' entropy below which groups without contrast are no accident."""


class Pulse:
    """Levels of reward and validity, and the newest entropy, KL and contrast.

    Args:
        bounds: The recipe's.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.reward = Level(bounds.window, bounds.drop)
        self.validity = Level(bounds.window, bounds.drop)
        self._columns: dict[str, list[float]] = {metric.ENTROPY: [], metric.KL: [], metric.ZERO_STD: []}
        self.dead = 0
        self.still = 0

    def add(self, values: Mapping[str, float]) -> None:
        """Take in one step's numbers."""
        if metric.REDRAW_REWARD in values:
            # The batch's own reward is that of the groups that were kept.
            values = {**values, metric.REWARD: values[metric.REDRAW_REWARD]}
        if metric.SAMPLED_ENTROPY in values:
            # A step in which nothing has contrast makes no forward pass; its draws still tell of the entropy.
            values = {metric.ENTROPY: values[metric.SAMPLED_ENTROPY], **values}
        for level, name in ((self.reward, metric.REWARD), (self.validity, metric.VALIDITY)):
            if name in values and abs(values[name]) < float("inf"):
                level.add(values[name])
        for name, column in self._columns.items():
            if name in values and abs(values[name]) < float("inf"):
                column.append(values[name])
                del column[: -self._bounds.window]
        dead = values.get(metric.ZERO_STD, 0.0) >= DEAD
        self.dead = self.dead + 1 if dead else 0
        self.still = self.still + 1 if dead and values.get(metric.GRAD_NORM, 0.0) <= STILL else 0

    def newest(self, name: str, n: int = 3) -> float | None:
        """Mean of the newest n readings of entropy, KL or dead groups."""
        column = self._columns[name][-n:]
        return mean(column) if column else None

    def climate(self, step: int) -> Climate:
        """What the policy is like now."""
        return Climate(step, self.reward.now, self.newest(metric.ENTROPY), self.newest(metric.KL))

    def collapse(self) -> tuple[str, Fall] | None:
        """The finding and the fall behind it, if validity or reward has collapsed."""
        if fall := self.validity.fall():
            return "update-collapse", fall
        if fall := self.reward.fall():
            return "catastrophic-update", fall
        return None

    def locked(self, good: Climate) -> bool:
        """Whether no group has had contrast for a window, and the entropy that could bring it back is gone."""
        entropy = self.newest(metric.ENTROPY)
        lost = entropy is not None and good.entropy is not None and entropy < LOST_ENTROPY * good.entropy
        return self.dead >= self._bounds.window and lost

    def sound(self, good: Climate) -> bool:
        """Whether the weights that drew the newest batch are better to come back to than the good ones so far."""
        now, best, error = self.reward.now, self.reward.best, self.reward.error
        if now is None or best is None or self.dead >= self._bounds.window // 2:
            return False
        valid, most = self.validity.now, self.validity.best
        if valid is not None and most is not None and valid < most - max(self.validity.error, 0.1 * most):
            return False
        if good.reward is None or now > good.reward + error:
            return now >= best - error
        entropy = self.newest(metric.ENTROPY)
        has_entropy = entropy is None or good.entropy is None or entropy >= 0.8 * good.entropy
        return now >= best - error and has_entropy

    def restart(self) -> None:
        """Forget the newest readings: they are another policy's."""
        self.reward.restart()
        self.validity.restart()
        self._columns = {name: [] for name in self._columns}
        self.dead = self.still = 0

    def rebase(self) -> None:
        """Take what follows as the new normal."""
        self.restart()
        self.reward.best = self.validity.best = None

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, as JSON."""
        return {
            "reward": self.reward.state(),
            "validity": self.validity.state(),
            "columns": self._columns,
            "dead": self.dead,
            "still": self.still,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state`."""
        self.reward.load_state(state["reward"])
        self.validity.load_state(state["validity"])
        self._columns = {name: [float(v) for v in state["columns"][name]] for name in self._columns}
        self.dead, self.still = int(state["dead"]), int(state["still"])
