"""Metrics of an update are those of its micro-batches one by one, and cost one read from the device."""

from __future__ import annotations

import math

import pytest
import torch

from device_reads import Reads
from levelhead import metrics as metric
from levelhead.training.plan import Share
from levelhead.training.update_metrics import Statistic, UpdateMetrics, loss_statistics, summarise

YES = torch.ones((), dtype=torch.bool)


def statistics(seed: int) -> list[Statistic]:
    values = torch.rand(4, generator=torch.Generator().manual_seed(seed))
    stats = {"clip/mean": values[0], "ratio/max": values[1], "ratio/min": values[2]}
    return [Statistic("loss", values[3]), *loss_statistics(stats, 3.0 + seed)]


def test_an_update_has_the_sums_means_and_ends_of_its_micro_batches() -> None:
    metrics = UpdateMetrics()
    for seed in range(3):
        metrics.add(YES, statistics(seed))
    sums = metrics.read()
    rows = [[float(s.value) for s in statistics(seed)] for seed in range(3)]
    loss, clip, most, least = zip(*rows, strict=True)
    assert sums["loss"] == loss[0] + loss[1] + loss[2]  # to the bit: added up as Python numbers, in order
    assert sums["clip/mean|sum"] == 3.0 * clip[0] + 4.0 * clip[1] + 5.0 * clip[2]
    assert sums["clip/mean|count"] == 12.0
    assert sums["ratio/max|max"] == max(most)
    assert sums["ratio/min|min"] == min(least)
    assert not metrics.broken
    assert summarise(sums, {})["clip/mean"] == sums["clip/mean|sum"] / 12.0


@pytest.mark.parametrize("microbatches", [1, 40])
def test_nothing_is_read_while_micro_batches_run_and_once_when_all_have(
    microbatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics, rows = UpdateMetrics(), [statistics(seed) for seed in range(microbatches)]
    copies: list[int] = []
    real = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: copies.append(self.numel()) or real(self))
    with Reads() as reads:
        for row in rows:
            metrics.add(YES.float(), row)
        assert reads.count == 0
        metrics.read()
    assert reads.count == 0
    assert copies == [5 * microbatches]


def test_micro_batches_from_a_broken_one_on_are_left_out() -> None:
    metrics = UpdateMetrics()
    metrics.add(YES, [Statistic("loss", torch.tensor(1.0))])
    metrics.add(~YES, [Statistic("loss", torch.tensor(math.nan))])
    metrics.add(YES, [Statistic("loss", torch.tensor(4.0))])
    assert metrics.read() == {"loss": 1.0}
    assert metrics.broken


def test_the_whole_is_the_mean_of_the_tasks_by_their_weights() -> None:
    sums = {metric.ENTROPY_BY_TASK.of("one"): 1.0, metric.ENTROPY_BY_TASK.of("two"): 3.0, metric.LOSS: 0.5}
    shares = {"one": Share(0.75, 1.0, 1.0), "two": Share(0.25, 1.0, 1.0)}
    values = summarise(sums, shares)
    assert values[metric.ENTROPY] == pytest.approx(1.5)
    assert values[metric.LOSS] == 0.5
