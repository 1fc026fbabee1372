"""Where a noisy signal stands, and whether it has fallen from where it stood, beyond chance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from levelhead.diagnosis import stats

SURE = 4.75
"""Standard errors by which a level must lie below the best one."""
NEARLY_ALL = 0.75
"""Share of the best level that those must have lost."""
MEMORY = 64
"""Readings that the noise is told from; a collapse is short beside them."""
QUICK = 3
"""Readings that show a collapse which leaves hardly anything."""


@dataclass(frozen=True, slots=True)
class Fall:
    """A level that has been lost.

    Attributes:
        best: Level that the run had reached.
        now: Mean of the newest readings.
        readings: How many of them.
        error: Standard error of the difference.
    """

    best: float
    now: float
    readings: int
    error: float

    def to_json(self) -> dict[str, float]:
        """Evidence of an event."""
        return {"best": self.best, "now": self.now, "readings": self.readings, "error": self.error}


class Level:
    """The newest readings of one signal against the best level that they have reached.

    A level is a mean less its standard error, so that the best of many noisy means is not the luckiest one.

    Args:
        window: Readings of a level.
        drop: Share of the best level whose loss matters.
    """

    def __init__(self, window: int, drop: float) -> None:
        self._window, self._drop = window, drop
        self.recent: list[float] = []
        self._past: list[float] = []
        self.best: float | None = None
        self.lowest = 0.0
        self.noise = 0.0

    def add(self, value: float) -> None:
        """Take in a reading."""
        self.recent = [*self.recent, value][-2 * self._window :]
        self._past = [*self._past, value][-MEMORY:]
        self.lowest = min(self.lowest, value)
        if len(self._past) >= self._window:
            # A few readings tell too small a noise as often as one too large.
            self.noise = max(stats.noise(self._past) * (1 + 8 / len(self._past)), 1e-9)
        for n in (self._window, 2 * self._window):
            if n <= len(self.recent):
                level = self.mean(n) - self.noise / math.sqrt(n)
                self.best = level if self.best is None else max(self.best, level)

    def mean(self, n: int) -> float:
        """Mean of the newest n readings."""
        return stats.mean(self.recent[-n:])

    @property
    def now(self) -> float | None:
        """Level of the newest half window; ``None`` before there is one."""
        n = self._window // 2
        return self.mean(n) if len(self.recent) >= n else None

    @property
    def error(self) -> float:
        """Standard error of :attr:`now`."""
        return self.noise / math.sqrt(self._window // 2)

    def fall(self) -> Fall | None:
        """The collapse that the newest readings show, if they show one.

        The loss must matter (a share of the best level over the floor) and be beyond chance; after a few readings
        only the loss of nearly all counts.
        """
        if self.best is None:
            return None
        height = self.best - self.lowest
        for n in (QUICK, self._window // 2, self._window, 2 * self._window):
            if n > len(self.recent):
                break
            share = max(self._drop, NEARLY_ALL) if n == QUICK else self._drop
            now, error = self.mean(n), self.noise * math.sqrt(1 / n + 1 / self._window)
            if height > 0 and self.best - now > share * height and self.best - now > SURE * error:
                return Fall(self.best, now, n, error)
        return None

    def restart(self) -> None:
        """Forget the newest readings: the policy is another one now."""
        self.recent = []

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, as JSON."""
        columns = {"recent": self.recent, "past": self._past}
        return columns | {"best": self.best, "lowest": self.lowest, "noise": self.noise}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state`."""
        self.recent = [float(value) for value in state["recent"]]
        self._past = [float(value) for value in state["past"]]
        self.best = None if state["best"] is None else float(state["best"])
        self.lowest, self.noise = float(state["lowest"]), float(state["noise"])
