"""A growing history of step records: one column a signal, bounded in memory, cheap to append to.

Canonical names of signals are TRL's; a few that TRL lacks follow its style (``dead_groups/all_failed``).  Readers map
their source's keys to these names and never to a signal that means something else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from levelhead import metrics as metric

Merge = Literal["mean", "max", "min", "last"]


SIGNALS: dict[str, Merge] = {
    metric.ENTROPY_COEF: "last",
    metric.GRAD_NORM: "max",  # TRL logs the last step of the window
    metric.LEARNING_RATE: "last",
    metric.MIN_LENGTH: "min",
    metric.MAX_LENGTH: "max",
    metric.NUM_TOKENS: "last",  # other trainers count the tokens seen so far
    metric.LOGP_DIFFERENCE_MAX: "max",
    metric.BEYOND_ROUNDING: "max",
    metric.IMPORTANCE_MIN: "min",
    metric.IMPORTANCE_MAX: "max",
    # What only other trainers log.
    "policy_loss": "mean",  # policy part of the loss
    "reward/max": "max",  # largest reward of the batch
    "reward/min": "min",  # smallest reward of the batch
    "advantages/mean": "mean",  # mean advantage
    "advantages/max": "max",  # largest advantage of the batch
    "advantages/min": "min",  # smallest advantage of the batch
    "kl_coef": "last",  # coefficient of the KL penalty
    "ppo_kl": "mean",  # KL of the policy to the one that drew the rollouts, as the trainer computes it
    "epoch": "last",  # passes over the data
    "mismatch/kl": "mean",  # KL between trainer and sampler per token, nats
    "mismatch/prob_diff_mean": "mean",  # mean |probability in the trainer - probability in the sampler|
    "mismatch/prob_diff_max": "max",  # largest such difference
    "mismatch/correlation": "min",  # Pearson correlation of trainer and sampler probabilities
    "mismatch/mult_prob_error": "max",  # mean exp|log-prob difference| of trainer and sampler; 1 is agreement
    "updates": "last",  # optimizer updates so far
    "group_size": "last",  # rollouts of one prompt
    "reward/errors": "max",  # share of rollouts whose reward function failed
    "gradients/cosine": "min",  # cosine between the gradients of two tasks
    "value_loss": "mean",  # loss of the value function, where there is one
    "eval/score": "mean",  # held-out score
}
"""How neighbouring readings of a signal are merged when a history outgrows its capacity: peaks of spiky ones are kept
(``max``), counters keep the ``last`` one, levels are averaged (``mean``), as are all signals that do not stand here."""

REWARD_PART = re.compile(f"^{metric.PART_MEAN.prefix}(?P<name>.+){metric.PART_MEAN.suffix}$")
"""Canonical name of one named reward."""

_STRONG_OUTCOME = re.compile(
    r"accura|(?:^|[_/ -])(?:ndcg|recall|mrr)|(?:^|[_/ -])acc(?:$|[_/ -])|correct|solve|success|pass", re.IGNORECASE
)
_FORM = re.compile(
    r"format|length|think|tag|xml|style|repet|language|cosine|brev|concis|reason|step|structure|syntax|cite|json|"
    r"schema|int_reward|penalty|divers",
    re.IGNORECASE,
)
_OUTCOME = re.compile(
    r"corr$|answer|exact|match|outcome|verif|math|test|em$|(^|[_/ ])f1|label|ground|result|rule|"
    r"gold|human|win|^env|strict|true|task|execut|compil|number",
    re.IGNORECASE,
)


def part_kind(name: str) -> Literal["outcome", "form", "other"]:
    """Whether a named reward judges the outcome (is it right) or the form (how it is written).

    Args:
        name: The reward's name, without ``rewards/`` and ``/mean``.
    """
    if _STRONG_OUTCOME.search(name):
        return "outcome"
    if _FORM.search(name):
        return "form"
    return "outcome" if _OUTCOME.search(name) else "other"


DEFAULT_CAPACITY = 4096
"""Readings a column holds before neighbours are merged two by two."""


LARGEST = 1e60
"""A reading beyond it counts as infinite: its square nearly is, and single precision ends at 3.4e38."""


@dataclass(slots=True)
class NonFinite:
    """Readings of one signal that were NaN or infinite.

    Attributes:
        count: How many.
        first: Step of the first; NaN when there is none.
        last: Step of the last; NaN when there is none.
        trailing: How many stand at the very end, with no finite reading after them.
        leading: How many stood at the very beginning, before any finite reading.
        sample: The value of the first, as it was read.
    """

    count: int = 0
    first: float = math.nan
    last: float = math.nan
    trailing: int = 0
    leading: int = 0
    sample: float = math.nan


@dataclass(slots=True)
class Series:
    """The finite readings of one signal, in order, with the steps they were read at.

    Attributes:
        name: Canonical signal name.
        steps: Step of each reading, non-decreasing.
        values: The readings.
        bad: What was read and was not finite.
        stride: Raw readings merged into one entry; 1 until the capacity was reached.
    """

    name: str
    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    bad: NonFinite = field(default_factory=NonFinite)
    stride: int = 1
    _merge: Merge = "mean"
    _pending: int = 0

    def __len__(self) -> int:
        return len(self.values)

    def between(self, first: float = -math.inf, end: float = math.inf) -> list[float]:
        """The readings from step ``first`` on, and before step ``end``."""
        return [value for step, value in zip(self.steps, self.values, strict=True) if first <= step < end]

    @property
    def seen(self) -> int:
        """Readings of any kind, merged entries counted once."""
        return len(self.values) + self.bad.count

    def append(self, step: float, value: float, capacity: int) -> None:
        """Add a reading; non-finite ones, and those beyond :data:`LARGEST`, are counted apart."""
        if not abs(value) <= LARGEST:
            self._append_bad(step, value)
            return
        self.bad.trailing = 0
        if self._pending and self.values:
            self.values[-1] = self._join(self.values[-1], value, self._pending, 1)
        else:
            self.steps.append(step)
            self.values.append(value)
        self._pending = (self._pending + 1) % self.stride
        if len(self.values) > capacity:
            self._coarsen()

    def _append_bad(self, step: float, value: float) -> None:
        bad = self.bad
        if not bad.count:
            bad.first, bad.sample = step, value
        bad.count += 1
        bad.last = step
        bad.trailing += 1
        if not self.values:
            bad.leading += 1

    def _join(self, a: float, b: float, weight_a: int, weight_b: int) -> float:
        """One entry for two neighbours of so many raw readings each."""
        if self._merge == "mean":
            return (a * weight_a + b * weight_b) / (weight_a + weight_b)
        if self._merge == "last":
            return b
        return max(a, b) if self._merge == "max" else min(a, b)

    def _coarsen(self) -> None:
        """Merge entries two by two; the newest one holds a single raw reading so far and stays open."""
        full = self.values[:-1]
        steps = self.steps[:-1][::2]
        values = [self._join(a, b, self.stride, self.stride) for a, b in zip(full[::2], full[1::2], strict=False)]
        if len(full) % 2:
            values.append(self._join(full[-1], self.values[-1], self.stride, 1))
            self._pending = self.stride + 1
        else:
            steps.append(self.steps[-1])
            values.append(self.values[-1])
            self._pending = 1
        self.steps, self.values = steps, values
        self.stride *= 2
        self._pending %= self.stride


class History:
    """Columns of canonical signals over the steps of one run.

    The doctor fills one from a log, the guard from live records.  Absent readings are absent: columns have their
    own steps, and nothing is filled in.

    Args:
        capacity: Entries per column before neighbours are merged.

    Attributes:
        columns: The signals by name.
        rows: Rows so far; parts of one step count once.
        first_step: Step of the first row.
        last_step: Step of the last row.
        epochs: First and last position in passes over the data, where the source tells it.
        epoch_gap: Smallest way from one row to the next, in the same unit.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        if capacity < 8:
            raise ValueError(f"capacity must be at least 8, got {capacity}")
        self.capacity = capacity
        self.columns: dict[str, Series] = {}
        self.epochs: tuple[float, float] | None = None
        self.epoch_gap: float | None = None
        self.rows = 0
        self.first_step = math.nan
        self.last_step = math.nan

    def place(self, epoch: float | None) -> None:
        """Note where in its passes over the data the newest row stands."""
        if epoch is None or not math.isfinite(epoch):
            return
        first, last = self.epochs or (epoch, epoch)
        if epoch > last:
            self.epoch_gap = min(epoch - last, self.epoch_gap or math.inf)
        self.epochs = (first, epoch)

    def append(self, step: float, values: Mapping[str, float]) -> None:
        """Add the readings of one row under canonical names."""
        if not values:
            return
        # Rollout and trainer may log their parts of one step apart: that is one row.
        if step != self.last_step:
            self.rows += 1
        if self.rows == 1:
            self.first_step = step
        self.last_step = step
        for name, value in values.items():
            self.put(name, step, value)

    def put(self, name: str, step: float, value: float) -> None:
        """Add one reading, which makes no row."""
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = Series(name, _merge=SIGNALS.get(name, "mean"))
        column.append(step, value, self.capacity)

    def series(self, name: str) -> Series:
        """The column called ``name``; an empty one where the source has no such signal."""
        column = self.columns.get(name)
        return Series(name) if column is None else column

    def matching(self, prefix: str) -> Iterator[Series]:
        """Columns whose name starts with ``prefix``."""
        return (column for name, column in self.columns.items() if name.startswith(prefix))

    def parts(self, kind: str | None = None) -> list[Series]:
        """Named rewards with readings, all or those that judge ``outcome``, ``form`` or ``other``."""
        named = [
            (match["name"], column)
            for column in self.matching(metric.PART_MEAN.prefix)
            if len(column) and (match := REWARD_PART.match(column.name))
        ]
        return [column for name, column in named if kind is None or part_kind(name) == kind]

    def __contains__(self, name: str) -> bool:
        return name in self.columns
