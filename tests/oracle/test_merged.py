"""What each aggregator promises holds for the real mergers, and for nothing that was bent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from levelhead.objective.aggregation import ConflictMonitor, GradientMerger, MergeReport
from levelhead.objective.aggregation import merger as merger_module
from levelhead.objective.terms import Term
from levelhead.recipe.objective import AnyMerge
from oracle.merged import MergeWitness

KINDS = ("sum", "mean", "cagrad", "pcgrad", "upgrad", "mgda", "aligned_mtl", "nash_mtl")


def section(kind: str, scale: str = "sum") -> Any:
    """The recipe's section of an aggregator."""
    return TypeAdapter(AnyMerge).validate_python({"kind": kind, "scale": scale})


def leaves(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(n, generator=generator).to(dtype).requires_grad_() for n in (11, 7)]


def terms(params: Sequence[Tensor], tasks: int, seed: int, sizes: Sequence[float]) -> list[Term]:
    """One linear reward a task, whose gradients conflict by chance, and an entropy that goes straight through."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for index in range(tasks):
        value = sum((p * torch.randn(p.shape, generator=generator).to(p.dtype)).sum() for p in params)
        made.append(Term("policy", sizes[index] * value, "maximize", 1.0, f"t{index}"))  # type: ignore[arg-type]
    return [*made, Term("entropy", params[0].square().sum(), "maximize", 0.1, "t0")]


def merge(
    kind: str, *, tasks: int = 2, seed: int = 0, scale: str = "sum", sizes: Sequence[float] = (1.0, 3.0, 0.5),
    dtype: torch.dtype = torch.float32, witness: MergeWitness | None = None,
) -> tuple[MergeReport, MergeWitness]:  # fmt: skip
    params = leaves(dtype)
    merger = GradientMerger(params, kind, scale=scale, monitor=ConflictMonitor(1))  # type: ignore[arg-type]
    seen = MergeWitness()
    merger.add(terms(params, tasks, seed, sizes))
    combine = merger_module.combine

    def shown(pairs: Any) -> Tensor | None:
        *weighted, (_, rest) = pairs = list(pairs)
        merged = combine(pairs)
        (witness or seen).see([part for _, part in weighted], rest, merged, [weight for weight, _ in weighted])
        return merged

    with patch.object(merger_module, "combine", shown):
        return merger.finish(), seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tasks", [2, 3])
@pytest.mark.parametrize("scale", ["sum", "own"])
def test_real_mergers_keep_their_promises(kind: str, tasks: int, scale: str) -> None:
    for seed in range(20):
        report, witness = merge(kind, tasks=tasks, seed=seed, scale=scale)
        assert list(witness.judge(report, section(kind, scale))) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_without_gradient_and_half_precision_are_no_fault(kind: str) -> None:
    for seed in range(5):
        for sizes, dtype in (((1.0, 0.0, 2.0), torch.float32), ((1.0, 2.0, 3.0), torch.bfloat16)):
            report, witness = merge(kind, seed=seed, sizes=sizes, dtype=dtype)
            assert list(witness.judge(report, section(kind))) == []  # type: ignore[arg-type]


def conflicting(kind: str) -> int:
    """A seed whose two gradients conflict."""
    for seed in range(50):
        report, _ = merge(kind, seed=seed, sizes=(1.0, 1.0, 1.0))
        if report.metrics["merge/cosine/t0/t1"] < -0.2:
            return seed
    raise AssertionError


class Bent(MergeWitness):
    """Sees another merge than was made: one that a faulty merger would have made."""

    def __init__(self, bend: Callable[[list[Tensor | None], Tensor | None, list[float]], Tensor]) -> None:
        super().__init__()
        self.bend = bend

    def start(self) -> None:
        pass

    def see(
        self, parts: Sequence[Tensor | None], rest: Tensor | None, merged: Tensor | None, weights: Sequence[float]
    ) -> None:
        super().see(parts, rest, self.bend(list(parts), rest, list(weights)), weights)


def whole(parts: list[Tensor | None], rest: Tensor | None, weights: list[float]) -> Tensor:
    pieces = [w * p for w, p in zip(weights, parts, strict=True) if p is not None]
    return sum([*pieces, *([] if rest is None else [rest])], torch.zeros(()))


BENT: dict[str, Callable[[list[Tensor | None], Tensor | None, list[float]], Tensor]] = {
    "the rest is lost": lambda parts, rest, weights: whole(parts, None, weights),
    "a task is left out": lambda parts, rest, weights: whole([parts[0], None], rest, weights),
    "a task's sign is lost": lambda parts, rest, weights: whole(parts, rest, [weights[0], -weights[1]]),
    "it is a mean": lambda parts, rest, weights: whole(parts, rest, [w / 2 for w in weights]),
    "the rest counts twice": lambda parts, rest, weights: whole(parts, None if rest is None else 2 * rest, weights),
}


@pytest.mark.parametrize("name", sorted(BENT))
def test_a_merge_that_is_not_the_weighted_sum_is_told_of(name: str) -> None:
    report, seen = merge("cagrad", witness=(bent := Bent(BENT[name])))
    assert not seen._whole
    (violation,) = bent.judge(report, section("cagrad"))
    assert violation.code == "merge-promise"
    assert "not the sum" in violation.text


def bent_weights(kind: str, change: Callable[[list[float]], list[float]], scale: str = "sum") -> list[str]:
    seed = conflicting(kind)
    report, witness = merge(kind, seed=seed, sizes=(1.0, 1.0, 1.0), scale=scale)
    weights = dict(zip(report.weights, change(list(report.weights.values())), strict=True))
    witness._left = 0.0  # the gradient is made of these weights
    return [v.text for v in witness.judge(MergeReport(kind, weights), section(kind, scale))]  # type: ignore[arg-type]


CHANGES: dict[str, Callable[[list[float]], list[float]]] = {
    "swapped signs": lambda w: [w[0], -w[1]],
    "one task wins": lambda w: [sum(w) * 3, 0.0],
    "on the wrong scale": lambda w: [v / 4 for v in w],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(CHANGES))
def test_weights_that_break_a_promise_are_told_of(kind: str, name: str) -> None:
    told = bent_weights(kind, CHANGES[name])
    if (kind, name) == ("upgrad", "on the wrong scale"):
        pytest.skip("against no task at any length: UPGrad promises a direction where tasks conflict")
    assert told
    assert "promises" in told[0]


def test_a_plain_sum_is_no_surgery() -> None:
    for kind in ("upgrad", "mgda", "cagrad"):
        assert bent_weights(kind, lambda w: [4.0, 0.2])
