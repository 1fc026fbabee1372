"""Metrics of an update: they stay on the device while its micro-batches run, and are read once when all have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from levelhead import metrics as metric
from levelhead.training.plan import Share

Reduction = Literal["sum", "mean", "max", "min"]
Scalar = Tensor | float

ROUNDING = "rounding"
"""Sum under which the tolerance of on-policy log-probabilities stands."""
REFERENCE_GAP = "reference/{task}"
"""Sum under which a task's mean distance of log-probabilities from the reference stands."""


@dataclass(frozen=True, slots=True)
class Statistic:
    """One number of one micro-batch.

    Attributes:
        name: Metric.
        value: A scalar, wherever it was computed.
        reduction: How the numbers of the micro-batches become that of the update.
        count: Tokens behind a ``mean``.
    """

    name: str
    value: Scalar
    reduction: Reduction = "sum"
    count: float = 1.0


def loss_statistics(stats: Mapping[str, Tensor], tokens: float) -> list[Statistic]:
    """Statistics of a loss: the largest of a ``/max``, the smallest of a ``/min``, else the mean over tokens."""
    ends: dict[str, Reduction] = {"max": "max", "min": "min"}
    return [Statistic(name, value, ends.get(name.rpartition("/")[2], "mean"), tokens) for name, value in stats.items()]


class UpdateMetrics:
    """The statistics of an update's micro-batches.

    Adding reads nothing, so that a GPU never waits for the host; :meth:`read` copies all numbers over at once.
    """

    def __init__(self) -> None:
        self._microbatches: list[tuple[Tensor, list[Statistic]]] = []
        self.broken = False
        """Whether a log-probability was not finite; known after :meth:`read`."""

    def add(self, finite: Tensor, statistics: Iterable[Statistic]) -> None:
        """Take the statistics of a micro-batch.

        Args:
            finite: Scalar, 1 where all of its log-probabilities are finite and 0 where one is not; of the type of the
                statistics, so that all go over in one copy.
            statistics: In any order.
        """
        self._microbatches.append((finite, list(statistics)))

    def read(self) -> dict[str, float]:
        """Wait for the device once; return sums by ``name``, ``name|sum``, ``name|count``, ``name|max``, ``name|min``.

        Micro-batches from the first one whose log-probabilities are not finite are left out.
        """
        batches = self._microbatches
        numbers = iter(_to_host([value for flag, rows in batches for value in (flag, *(row.value for row in rows))]))
        sums: dict[str, float] = {}
        for _, statistics in self._microbatches:
            self.broken |= not next(numbers)
            for statistic in statistics:
                value = next(numbers)
                if not self.broken:
                    _reduce(sums, statistic, value)
        self._microbatches.clear()
        return sums


def summarise(sums: Mapping[str, float], shares: Mapping[str, Share]) -> dict[str, float]:
    """Return the metrics of an update.

    Args:
        sums: As :meth:`UpdateMetrics.read` returns them, added up over all processes.
        shares: Share of each task.
    """
    values: dict[str, float] = {}
    for whole, by_task in ((metric.ENTROPY, metric.ENTROPY_BY_TASK), (metric.KL, metric.KL_BY_TASK)):
        parts = {task: sums[by_task.of(task)] for task in shares if by_task.of(task) in sums}
        if parts:
            total = sum(shares[task].weight for task in parts)
            values[whole] = sum(shares[task].weight * value for task, value in parts.items()) / total
            values |= {by_task.of(task): value for task, value in parts.items()}
    for name in [key.removesuffix("|sum") for key in sums if key.endswith("|sum")]:
        values[name] = sums[f"{name}|sum"] / max(sums[f"{name}|count"], 1.0)
    for end in ("|max", "|min"):
        values |= {key.removesuffix(end): value for key, value in sums.items() if key.endswith(end)}
    if ROUNDING in values:
        beyond = values[metric.LOGP_DIFFERENCE_MEAN] - values.pop(ROUNDING)
        values[metric.BEYOND_ROUNDING] = max(beyond, 0.0)
    values[metric.LOSS] = sums.get(metric.LOSS, 0.0)
    return values


def _to_host(values: list[Scalar]) -> list[float]:
    """Return the values as Python numbers, with one copy for each device and type (one of each, as a rule)."""
    numbers = [0.0 if isinstance(value, Tensor) else float(value) for value in values]
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, value in enumerate(values):
        if isinstance(value, Tensor):
            alike.setdefault((value.device, value.dtype), []).append(index)
    for places in alike.values():
        column = torch.stack([tensor for index in places if isinstance(tensor := values[index], Tensor)])
        for index, number in zip(places, column.tolist(), strict=True):
            numbers[index] = float(number)
    return numbers


def _reduce(sums: dict[str, float], statistic: Statistic, value: float) -> None:
    name = statistic.name
    if statistic.reduction == "max":
        sums[f"{name}|max"] = max(sums.get(f"{name}|max", -math.inf), value)
    elif statistic.reduction == "min":
        sums[f"{name}|min"] = min(sums.get(f"{name}|min", math.inf), value)
    elif statistic.reduction == "mean":
        sums[f"{name}|sum"] = sums.get(f"{name}|sum", 0.0) + value * statistic.count
        sums[f"{name}|count"] = sums.get(f"{name}|count", 0.0) + statistic.count
    else:
        sums[name] = sums.get(name, 0.0) + value
