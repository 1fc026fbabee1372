"""What a detector is given (a view of the run) and what it gives (candidate findings with evidence for and against)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.history import History, Series
from levelhead.diagnosis.reward_trend import RewardTrend
from levelhead.diagnosis.trend import Numbered, ends, index_at, shift_at, trend
from levelhead.records import Severity

PRIOR = -3.0
"""Log-odds of any one finding before a reading is looked at: one run in twenty; set by hand."""

_MAX_READINGS = 8
_TREND = ("reward-flat", "reward-rises")
_MOST_NATS = 14.0
"""Entropy of a uniform choice among a million tokens."""

# Set by hand on the development logs (docs/doctor.md), unless a line says otherwise.
# Weights are log-odds; a range begins where nothing counts and ends where all does.
_ZERO_ROWS = 8  # losses before exact zeros stand out,
_OTHER_ROWS = 3  # of which so many are not 0
_FAR_FROM_ZERO = 0.02  # and lie this far from it,
_OTHERS_MOST = 0.9  # being no more than this share
_UNMOVED = 1.4  # factor within which length and entropy are as before


@dataclass(frozen=True, slots=True)
class Reading:
    """A number of the log that shows something."""

    metric: str
    step: float
    value: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """One argument: its weight in log-odds (positive for, negative against) and its wording's key and numbers."""

    weight: float
    key: str
    numbers: dict[str, float | str]


@dataclass(slots=True)
class Candidate:
    """A candidate finding: the case for it and against it.

    Attributes:
        code: The finding's code.
        evidence: Arguments for and against.
        first_step: First bad step.
        readings: Rows that show it, at most eight.
        severity: Where the evidence itself settles how bad it is; the catalogue's otherwise.
        setup: Visible at the first row: a fault of the set-up, not of the training.
    """

    code: str
    evidence: list[Evidence] = field(default_factory=list)
    first_step: float | None = None
    readings: list[Reading] = field(default_factory=list)
    severity: Severity | None = None
    setup: bool = False

    # Set by hand on the development logs (docs/doctor.md), unless a line says otherwise.
    # Weights are log-odds; a range begins where nothing counts and ends where all does.
    LEAST_WEIGHT = 0.05  # log-odds that are no argument

    def add(self, weight: float, key: str, **numbers: float | str) -> Candidate:
        """Add an argument; weights under 0.05 are no argument.

        What the reward's trend says is one argument, of the sum of its weights: no text says both that the reward rises
        and that it does not.
        """
        if key in _TREND:
            weight += sum(argument.weight for argument in self.evidence if argument.key in _TREND)
            self.evidence = [argument for argument in self.evidence if argument.key not in _TREND]
            key = "reward-flat" if weight > 0 else "reward-rises"
        if abs(weight) >= self.LEAST_WEIGHT:
            self.evidence.append(Evidence(weight, key, numbers))
        return self

    def add_fall(self, weight: float, trend: RewardTrend) -> Candidate:
        """Add the argument that the reward was lost, where it was not learnt as well."""
        return self.add(weight * trend.lost * (1 - trend.learned), "reward-falls", value=trend.reward.late)

    def add_near_top(self, weight: float, trend: RewardTrend) -> Candidate:
        """Add the argument that the reward stands near its maximum."""
        return self.add(weight * trend.near_top, "reward-near-top", value=trend.reward.late)

    def show(self, series: Series, *steps: float | None) -> Candidate:
        """Show the readings of ``series`` nearest to ``steps``; what is ``None`` is left out."""
        for step in steps:
            at = None if step is None else index_at(series, step)
            if at is not None:
                self.show_value(series.name, series.steps[at], series.values[at])
        return self

    def show_value(self, metric: str, step: float, value: float) -> Candidate:
        """Add one reading to those that a report shows."""
        reading = Reading(metric, step, value)
        if reading not in self.readings and len(self.readings) < _MAX_READINGS:
            self.readings.append(reading)
        return self

    @property
    def log_odds(self) -> float:
        """Log odds of the finding: prior and evidence together."""
        return PRIOR + sum(argument.weight for argument in self.evidence)


class View(Numbered):
    """A run as detectors see it: its history, and what several of them need worked out once.

    Args:
        history: The run so far.
        events: What its guard, trainer and environments said, in order; none where the source has no such thing.
    """

    def __init__(self, history: History, events: Sequence[Mapping[str, Any]] = ()) -> None:
        self.history = history
        self.events = events
        self._reward_trend: RewardTrend | None = None
        self._dead: Series | None = None

    @property
    def reward_trend(self) -> RewardTrend:
        """What became of the reward."""
        if self._reward_trend is None:
            self._reward_trend = RewardTrend(self.history)
        return self._reward_trend

    @property
    def rows(self) -> int:
        """Number of rows that were read."""
        return self.history.rows

    def series(self, *names: str) -> Series:
        """The first of the named columns that has finite readings (an empty one otherwise)."""
        for name in names:
            column = self.history.series(name)
            if len(column):
                return column
        return self.history.series(names[0])

    @property
    def first_window(self) -> float:
        """Updates that the first row covers, by its step: 1 where every step is logged."""
        return max(1.0, self.history.first_step)

    @property
    def from_start(self) -> bool:
        """Whether the log begins where training began, and is not an excerpt from later on."""
        history = self.history
        gap = (history.last_step - history.first_step) / max(history.rows - 1, 1)
        if history.first_step > max(self.LATE_START, self.LATE_START_GAPS * gap):
            return False
        if history.epochs is None or history.rows < 2:
            return True
        first, last = history.epochs
        gap = history.epoch_gap or (last - first) / (history.rows - 1)
        # Sources that round to two digits begin at 0.0 or 0.01 whatever the gap.
        return bool(first <= max(self.EPOCH_ROUNDING, self.EPOCH_GAPS * gap))

    @property
    def supervised(self) -> bool:
        """Whether this is supervised training: no reward of any kind, and a positive loss that falls.

        A policy loss lies about 0 on either side, and a KL penalty in it grows.
        """
        loss = self.history.series(metric.LOSS)
        if (
            self.reward_trend.reward.n
            or self.reward_trend.held_out
            or "policy_loss" in self.history
            or metric.KL in self.history
        ):
            return False
        if len(loss) < self.SUPERVISED_ROWS or min(loss.values) <= 0:
            return False
        early, late = ends(loss)
        falls = trend(loss).fall > self.SUPERVISED_FALL and late < self.SUPERVISED_LEFT * early
        return bool(early > self.SUPERVISED_LOSS and falls)

    @property
    def entropy(self) -> Series:
        """The entropy a token, where the column holds it: a negative one is a loss term, a constant 0 a placeholder.

        A step in which no group has contrast makes no forward pass, and has an entropy of its sampled tokens alone:
        where most steps are such, that is the column to go by.
        """
        column, sampled = self.series(metric.ENTROPY), self.history.series(metric.SAMPLED_ENTROPY)
        if len(sampled) > self.SAMPLED_INSTEAD * len(column):
            column = sampled
        if len(column) and (min(column.values) < self.NEGATIVE or max(column.values) <= 0):
            return Series(metric.ENTROPY)
        if len(column) and stats.median(column.values) > _MOST_NATS:
            # More than the logarithm of any vocabulary: a sum over tokens.
            return Series(metric.ENTROPY)
        return column

    @property
    def dead(self) -> Series:
        """Share of groups without contrast, measured or (where only whole-batch numbers exist) inferred as 0 or 1."""
        if self._dead is None:
            self._dead = self._dead_share()
        return self._dead

    @property
    def dead_readings(self) -> Series:
        """The column that :attr:`dead` is told by, as it stands in the log."""
        column = self.history.series(self.dead.name)
        return column if len(column) else self.dead

    def _dead_share(self) -> Series:
        measured = self.history.series(metric.ZERO_STD)
        if len(measured):
            return measured
        failed, solved = self.history.series(metric.ALL_FAILED), self.history.series(metric.ALL_SOLVED)
        if len(failed) and len(failed) == len(solved):
            values = [a + b for a, b in zip(failed.values, solved.values, strict=True)]
            return Series(metric.ZERO_STD, failed.steps, values)
        std = self.history.series(metric.REWARD_STD)
        if len(std):
            return Series(metric.REWARD_STD, std.steps, [float(v <= self.NO_SPREAD) for v in std.values])
        # Rewards of a whole batch differ between groups too; advantages only where some group has contrast.
        for name in ("advantages", "reward"):
            high, low = self.history.series(f"{name}/max"), self.history.series(f"{name}/min")
            if len(high) and len(high) == len(low):
                same = [float(a - b <= self.NO_DIFFERENCE) for a, b in zip(high.values, low.values, strict=True)]
                return Series(f"{name}/max", high.steps, same)
        reward = self.series(metric.REWARD, self.reward_trend.source)
        if len(reward) >= self.CONSTANT_ROWS and min(reward.values) == max(reward.values):
            # One and the same mean in row after row: so is every reward.
            return Series(reward.name, reward.steps, [1.0] * len(reward))
        return self._dead_by_stillness()

    def _dead_by_stillness(self) -> Series:
        """Where nothing tells contrast: rows in which loss and gradient are exactly 0 had none to learn from."""
        gradient, loss = self.history.series(metric.GRAD_NORM), self.history.series(metric.LOSS)
        if not len(loss):
            loss = self.history.series("policy_loss")
        if not len(gradient) and _stands_out(loss.values):
            return Series(metric.LOSS, loss.steps, [float(value == 0) for value in loss.values])
        if len(gradient) >= self.STILL_ROWS and not len(loss) and max(gradient.values) == 0:
            # Without a loss beside it, a gradient tells only where it never was anything but 0.
            return Series(metric.GRAD_NORM, gradient.steps, [1.0] * len(gradient))
        if len(gradient) != len(loss) or gradient.steps != loss.steps:
            return Series(metric.ZERO_STD)
        pairs = zip(gradient.values, loss.values, strict=True)
        return Series(metric.GRAD_NORM, gradient.steps, [float(g == 0 and value == 0) for g, value in pairs])


class Tuned(Numbered):
    """A detector whose numbers stand under its name in ``thresholds.yaml``.

    ``self.argue(case, "entropy-fell", x)`` reads ``ENTROPY_FELL_WEIGHT`` and ``ENTROPY_FELL_RANGE``.
    """

    def argue(
        self, case: Candidate, key: str, at: float, /, *factors: float, by: str = "", **numbers: float | str
    ) -> None:
        """Add the argument ``key``: ``KEY_WEIGHT``, times factors, times how far ``at`` has come through ``KEY_RANGE``.

        Args:
            case: To add it to.
            key: Of the wording.
            at: Reading.
            factors: Each from 0 to 1.
            by: Name of weight and range, where it is not the key.
            numbers: Of the wording.
        """
        name = by or key.upper().replace("-", "_")
        weight = math.prod(factors, start=getattr(self, f"{name}_WEIGHT"))
        case.add(weight * stats.ramp(at, *getattr(self, f"{name}_RANGE")), key, **numbers)


class Detector(Protocol):
    """Looks for a family of findings.  Pure: the same view gives the same candidates."""

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the findings that it may raise."""
        ...

    def examine(self, view: View) -> Iterable[Candidate]:
        """Candidate findings of this run; the weak ones too, for the diagnosis weighs them."""
        ...


def _stands_out(losses: Sequence[float]) -> bool:
    """Whether exact zeros stand among losses far from 0: then they are no rounding, but batches without contrast."""
    others = [abs(v) for v in losses if v]
    if len(losses) < _ZERO_ROWS or not others or min(others) <= _FAR_FROM_ZERO:
        return False
    # Many between them, or one before zeros that never end.
    ended = stats.tail_run([v == 0 for v in losses]) == len(losses) - len(others) >= _ZERO_ROWS
    return (len(others) >= _OTHER_ROWS and len(others) < _OTHERS_MOST * len(losses)) or ended


def unmoved(view: View, step: float) -> bool:
    """Whether answers are as long and as uncertain after ``step`` as before: a broken policy's would not be."""
    shifts = [shift_at(view.series(name), step) for name in (metric.ENTROPY, metric.MEAN_LENGTH)]
    pairs = [shift for shift in shifts if shift]
    return bool(pairs) and all(stats.ratio(max(s), min(s), 1e-6) < _UNMOVED for s in pairs)
