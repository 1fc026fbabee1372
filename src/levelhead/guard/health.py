"""The health of the policy: where reward, entropy, KL and contrast stand, what has fallen, whether it still reads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.sameness import PREFIX, Sameness, judge, names, stands_still, tells
from levelhead.diagnosis.stats import mean
from levelhead.guard import messages
from levelhead.guard.remedy import RecentStatistics
from levelhead.message import Phrase
from levelhead.recipe.guard import Guard as GuardSection

STANDARD_ERRORS = 4.75
"""Standard errors by which a level must lie below the best one."""
NEARLY_ALL = 0.75
"""Share of the best level that those must have lost."""
MEMORY = 64
"""Readings that the noise is told from; a collapse is short beside them."""
QUICK = 3
"""Readings that show a collapse which leaves hardly anything."""
DEAD = 0.999
"""Share of groups without contrast from which a step teaches nothing."""
STILL = 1e-9
"""Gradient norm of a step that moves nothing."""
LOST_ENTROPY = 0.25
"""Share of the good weights' entropy below which groups without contrast are no accident."""


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
        """Take in a reading, and move the best level and the noise by it."""
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
        """Standard error of :attr:`now`, from the noise of the readings up to now."""
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
            if height > 0 and self.best - now > share * height and self.best - now > STANDARD_ERRORS * error:
                return Fall(self.best, now, n, error)
        return None

    def restart(self) -> None:
        """Forget the newest readings: the policy is another one now."""
        self.recent = []

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, as JSON."""
        columns = {"recent": self.recent, "past": self._past}
        return columns | {"best": self.best, "lowest": self.lowest, "noise": self.noise}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self.recent = [float(value) for value in state["recent"]]
        self._past = [float(value) for value in state["past"]]
        self.best = None if state["best"] is None else float(state["best"])
        self.lowest, self.noise = float(state["lowest"]), float(state["noise"])


class HealthTracker:
    """Levels of reward and validity, and the newest entropy, KL and contrast.

    Args:
        bounds: The recipe's.
    """

    def __init__(self, bounds: GuardSection) -> None:
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

    def statistics(self, step: int) -> RecentStatistics:
        """What the policy is like now."""
        return RecentStatistics(step, self.reward.now, self.newest(metric.ENTROPY), self.newest(metric.KL))

    def collapse(self) -> tuple[str, Fall] | None:
        """The finding and the fall behind it, if validity or reward has collapsed."""
        if fall := self.validity.fall():
            return "update-collapse", fall
        if fall := self.reward.fall():
            return "catastrophic-update", fall
        return None

    def locked(self, good: RecentStatistics) -> bool:
        """Whether no group has had contrast for a window, and the entropy that could bring it back is gone."""
        entropy = self.newest(metric.ENTROPY)
        lost = entropy is not None and good.entropy is not None and entropy < LOST_ENTROPY * good.entropy
        return self.dead >= self._bounds.window and lost

    def sound(self, good: RecentStatistics) -> bool:
        """Whether the weights that sampled the newest batch are better to come back to than the good ones so far."""
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

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, as JSON."""
        return {
            "reward": self.reward.state_dict(),
            "validity": self.validity.state_dict(),
            "columns": self._columns,
            "dead": self.dead,
            "still": self.still,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self.reward.load_state_dict(state["reward"])
        self.validity.load_state_dict(state["validity"])
        self._columns = {name: [float(v) for v in state["columns"][name]] for name in self._columns}
        self.dead, self.still = int(state["dead"]), int(state["still"])


LEAST_STRENGTH = 0.5
"""Strength of the case from which answers count as one and the same."""
MATTERS = 0.1
"""Share of prompts by which the most common answer must lead that of perfect answers to be worth a thought."""

Row = dict[str, float]
"""Readings of one step by gauge."""


class AnswerDependence:
    """The newest answers of each task against what they told of the prompt at their best.

    Args:
        window: Steps that are judged together; a reward has stopped when it has not risen over two of them.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._tasks: dict[str, list[Row]] = {}
        self._best: dict[str, float] = {}
        self.constant = 0

    def add(self, values: Mapping[str, float]) -> None:
        """Take in one step's numbers."""
        for name in values:
            if name.startswith(PREFIX):
                self._add(name.removeprefix(PREFIX), values)
        alike = any(
            (case := self._judge(task, self._window // 2)) and case.strength >= LEAST_STRENGTH for task in self._tasks
        )
        self.constant = self.constant + 1 if alike else 0

    def _add(self, task: str, values: Mapping[str, float]) -> None:
        rows = self._tasks.setdefault(task, [])
        readings = {gauge: values[name] for gauge, name in names(task).items() if name in values}
        rows.append({gauge: value for gauge, value in readings.items() if abs(value) < float("inf")})
        del rows[: -2 * self._window]
        information = self._column(task, "information", self._window)
        if len(information) == self._window and tells(information):
            self._best[task] = max(self._best.get(task, 0.0), mean(information))

    def _judge(self, task: str, n: int) -> Sameness | None:
        """The newest n steps of a task; ``None`` where there are fewer."""
        if len(self._tasks[task]) < n:
            return None
        return judge(task, {gauge: self._column(task, gauge, n) for gauge in names(task)})

    def _column(self, task: str, gauge: str, n: int) -> list[float]:
        """The readings of a gauge in the newest n steps."""
        return [row[gauge] for row in self._tasks[task][-n:] if gauge in row]

    def stuck(self, patience: int) -> Sameness | None:
        """A task that has had one answer to everything for a window, and whose reward has stopped rising.

        One whose answers have never told anything of the prompt counts only after ``patience`` steps: it may first find
        the best answer to all prompts, and only then learn to tell them apart.
        """
        for task in self._tasks:
            case = self._judge(task, self._window)
            if (
                case is None
                or case.strength < LEAST_STRENGTH
                or not stands_still(self._column(task, "reward", 2 * self._window))
            ):
                continue
            if self.has_read(task) or self.constant >= patience:
                return case
        return None

    def describe(self, case: Sameness) -> Phrase:
        """One answer to everything, in words."""
        best = self._best.get(case.task, 0.0)
        return messages.ONE_ANSWER(share=case.share, task=case.task, best=best, now=case.information)

    def has_read(self, task: str) -> bool:
        """Whether the answers of a task have told anything of the prompt in this run."""
        return task in self._best

    @property
    def sound(self) -> bool:
        """Whether no task has lost half of what its answers told while one answer spreads over its prompts."""
        # The newest step by itself too: its weights are those that would be kept.
        for task, n in itertools.product(self._tasks, (1, self._window // 2)):
            case = self._judge(task, n)
            if case is None or (case.perfect is not None and case.share < case.perfect + MATTERS):
                continue
            lost = self.has_read(task) and case.information < 0.5 * self._best[task]
            if case.strength >= LEAST_STRENGTH or (lost and case.share > 0.6):
                return False
        return True

    def restart(self) -> None:
        """Forget the newest answers: they are another policy's."""
        self._tasks = {}
        self.constant = 0

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, as JSON."""
        return {"tasks": self._tasks, "best": self._best, "constant": self.constant}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._tasks = {task: [dict(row) for row in rows] for task, rows in state["tasks"].items()}
        self._best = dict(state["best"])
        self.constant = int(state["constant"])
