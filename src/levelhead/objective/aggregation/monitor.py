"""The conflict monitor: how the tasks' gradients stand to each other, and when merging is switched on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from levelhead import metrics as metric


@dataclass(slots=True)
class ConflictMonitor:
    """Looks at the tasks' cosines every ``every`` steps, and asks for a switch after a streak of conflicts.

    A step is in conflict where the cosine of some pair of tasks is less than ``below``.

    Attributes:
        every: Steps between looks; 0 never looks.
        switch_after: Conflicting looks in a row after which merging is switched on; 0 never switches.
        below: Cosine below which two tasks conflict.
        step: Steps seen.
        streak: Conflicting looks in a row.
    """

    every: int = 0
    switch_after: int = 0
    below: float = 0.0
    step: int = 0
    streak: int = 0

    def __post_init__(self) -> None:
        if self.every < 0 or self.switch_after < 0:
            raise ValueError(f"every and switch_after must not be negative, got {self.every} and {self.switch_after}")
        if self.switch_after and not self.every:
            raise ValueError("switch_after needs a monitor that looks: set every to 1 or more")
        if not -1 <= self.below <= 1:
            raise ValueError(f"below is a cosine and lies in [-1, 1], got {self.below}")

    @property
    def due(self) -> bool:
        """Whether the step at hand is looked at."""
        return self.every > 0 and self.step % self.every == 0

    def seen(self, cosines: Mapping[str, float]) -> dict[str, float]:
        """Note the cosines of the step at hand, and return the monitor's metrics; without a pair nothing is noted."""
        if not cosines:
            return {}
        conflict = min(cosines.values()) < self.below
        self.streak = self.streak + 1 if conflict else 0
        return {metric.MERGE_CONFLICT: float(conflict), metric.MERGE_CONFLICT_STREAK: float(self.streak)}

    @property
    def wants_switch(self) -> bool:
        """Whether the streak has reached ``switch_after``."""
        return 0 < self.switch_after <= self.streak
