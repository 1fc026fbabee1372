"""From terms to ``p.grad``: the paths agree, coefficients keep their meaning, state survives."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from levelhead.objective import kl, losses
from levelhead.objective.aggregation import AGGREGATORS, ConflictMonitor, GradientMerger, gramian, weights
from levelhead.objective.terms import Term, as_loss, scalar_loss

ROWS, TOKENS, WIDTH, VOCAB = 8, 5, 6, 7
NAMES = sorted(AGGREGATORS)


class Toy(nn.Module):
    """A policy over a small vocabulary, and a batch of two or three tasks for it."""

    def __init__(self, seed: int = 0, tasks: int = 2, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        self.hidden = nn.Parameter((torch.randn(WIDTH, WIDTH, generator=rng) * 0.5).to(dtype))
        self.head = nn.Parameter((torch.randn(VOCAB, WIDTH, generator=rng) * 0.5).to(dtype))
        self.unused = nn.Parameter(torch.ones(3, dtype=dtype))
        self.x = torch.randn(ROWS, TOKENS, WIDTH, generator=rng).to(dtype)
        self.tokens = torch.randint(VOCAB, (ROWS, TOKENS), generator=rng)
        self.mask = torch.arange(TOKENS)[None] < torch.randint(1, TOKENS + 1, (ROWS, 1), generator=rng)
        self.advantages = torch.randn(ROWS, generator=rng).to(dtype)
        self.task = torch.arange(ROWS) % tasks
        self.drift = 0.1 * torch.randn(ROWS, TOKENS, generator=rng).to(dtype)

    def leaves(self) -> list[Tensor]:
        return [self.hidden, self.head, self.unused]

    def terms(self, rows: list[int], beta: float = 0.3, bonus: float = 0.05) -> list[Term]:
        every = (torch.tanh(self.x[rows] @ self.hidden.T) @ self.head.T).log_softmax(-1)
        logp = every.gather(-1, self.tokens[rows, :, None]).squeeze(-1)
        total = losses.count("token_mean", self.mask)

        def mean(values: Tensor, members: Tensor) -> Tensor:
            return losses.aggregate("token_mean", values[members], self.mask[rows][members], denominator=total)

        surrogate = losses.policy_loss(
            "ppo_clip", logp, logp.detach() + self.drift[rows], self.advantages[rows], self.mask[rows]
        ).surrogate_nt
        leash = kl.estimate("k3", logp, logp.detach() - 3 * self.drift[rows])
        entropies = -(every.exp() * every).sum(-1)
        terms = []
        for index in self.task[rows].unique().tolist():
            members = self.task[rows] == index
            name = f"task{index}"
            terms.append(Term("policy", mean(surrogate, members), "maximize", task=name))
            terms.append(Term("kl", mean(leash, members), "minimize", beta * (1 + index), name))
        whole = torch.ones(len(rows), dtype=torch.bool)
        return [*terms, Term("entropy", mean(entropies, whole), "maximize", bonus)]


def task_gradients(terms: list[Term], leaves: list[Tensor]) -> dict[str | None, tuple[Tensor, ...]]:
    """The gradient of each task's own loss, one backward pass a task: what the merger is held against."""
    by_task: dict[str | None, list[Term]] = {}
    for term in terms:
        by_task.setdefault(term.task, []).append(term)
    options = {"retain_graph": True, "materialize_grads": True, "allow_unused": True}
    return {task: torch.autograd.grad(scalar_loss(group), leaves, **options) for task, group in by_task.items()}


WHOLE = [list(range(ROWS))]
MICRO = [[0], [1, 2, 3], [4, 5], [6, 7]]


def run(toy: Toy, kind: str, batches: list[list[int]] = WHOLE, **options: Any) -> tuple[list[Tensor], Any]:
    terms = options.pop("terms", {})
    merger = GradientMerger(toy.leaves(), kind, **options)
    for rows in batches:
        merger.add(toy.terms(rows, **terms))
    report = merger.finish()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in toy.leaves()], report


def relative(grads: list[Tensor], expected: list[Tensor]) -> float:
    difference = sum((a.double() - b.double()).square().sum() for a, b in zip(grads, expected, strict=True))
    return float((difference / sum(b.double().square().sum() for b in expected)).sqrt())


@pytest.mark.parametrize("tasks", [1, 2, 3])
@pytest.mark.parametrize("batches", [WHOLE, MICRO])
def test_sum_through_the_per_task_path_equals_the_single_backward(tasks, batches):
    toy = Toy(tasks=tasks)
    single, report = run(toy, "sum")
    assert report.metrics == {}
    apart, report = run(toy, "sum", batches, monitor=ConflictMonitor(every=1))
    assert set(report.weights.values()) == {1.0}
    assert relative(apart, single) < 1e-6
    scaled_mean, _ = run(toy, "mean", batches)
    assert relative(scaled_mean, single) < 1e-6
    low, _ = run(toy, "mean", batches, memory="low")
    assert relative(low, single) < 1e-6
    reference = task_gradients(toy.terms(WHOLE[0]), toy.leaves())
    added = [torch.stack(pieces).sum(0) for pieces in zip(*reference.values(), strict=True)]
    assert relative(added, single) < 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_add_up_before_merging(name):
    toy = Toy(seed=1)
    whole, _ = run(toy, name)
    micro, _ = run(toy, name, MICRO)
    assert relative(micro, whole) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_one_task_is_the_identity(name):
    toy = Toy(tasks=1)
    assert relative(run(toy, name)[0], run(toy, "sum")[0]) < 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_kl_and_entropy_go_straight_through_with_their_own_coefficients(name):
    toy = Toy(seed=2)
    bare, report = run(toy, name, terms={"beta": 0.0, "bonus": 0.0})
    full, full_report = run(toy, name)
    assert full_report.weights == pytest.approx(report.weights)
    leash = [term for term in toy.terms(WHOLE[0]) if term.name != "policy"]
    expected = [torch.zeros_like(p) for p in toy.leaves()]
    for term in leash:
        loss = term.weight * as_loss(term.value, term.sense)
        grads = torch.autograd.grad(loss, toy.leaves(), retain_graph=True, materialize_grads=True, allow_unused=True)
        expected = [a + b for a, b in zip(expected, grads, strict=True)]
    assert relative([a - b for a, b in zip(full, bare, strict=True)], expected) < 1e-4


def test_the_merged_gradient_is_the_weighted_sum_of_the_tasks_policy_gradients():
    toy = Toy(seed=3)
    merged_grads, report = run(toy, "cagrad", terms={"beta": 0.0, "bonus": 0.0}, c=0.5, scale="own")
    policy = [term for term in toy.terms(WHOLE[0]) if term.name == "policy"]
    gradients = task_gradients(policy, toy.leaves())
    flat = torch.stack([torch.cat([g.flatten() for g in grads]) for grads in gradients.values()]).double()
    expected = weights("cagrad", flat @ flat.T, c=0.5)
    assert list(report.weights.values()) == pytest.approx(expected.tolist(), rel=1e-5)
    merged = torch.cat([g.flatten() for g in merged_grads]).double()
    torch.testing.assert_close(merged, expected @ flat, rtol=1e-4, atol=1e-7)
    cosine = torch.nn.functional.cosine_similarity(flat[0], flat[1], dim=0).item()
    assert report.metrics["merge/cosine/task0/task1"] == pytest.approx(cosine, rel=1e-4)
    assert report.metrics["merge/norm/task0"] == pytest.approx(flat[0].norm().item(), rel=1e-5)
    assert report.metrics["merge/weight/task1"] == report.weights["task1"]


def test_own_scale_is_the_papers_and_sum_scale_is_as_long_as_sum():
    toy = Toy(seed=4)
    own, scaled = (run(toy, "upgrad", scale=scale)[1].weights for scale in ("own", "sum"))
    assert {name: 2 * weight for name, weight in own.items()} == pytest.approx(scaled)
    pc = [run(toy, "pcgrad", scale=scale)[1].weights for scale in ("own", "sum")]
    assert pc[0] == pc[1]


def test_a_task_without_contrast_does_not_stop_the_other():
    toy = Toy(seed=5)
    toy.advantages[toy.task == 1] = 0.0
    single, _ = run(toy, "sum")
    for name in ("cagrad", "upgrad", "mgda", "aligned_mtl", "pcgrad"):
        merged_grads, report = run(toy, name)
        assert relative(merged_grads, single) < 1e-6
        assert report.weights == {"task0": 1.0, "task1": 0.0}
        assert not [metric for metric in report.metrics if "cosine" in metric]


def test_a_task_missing_from_a_step_is_no_error():
    toy = Toy(seed=6)
    rows = [[0, 2, 4, 6]]
    assert relative(run(toy, "cagrad", rows)[0], run(toy, "sum", rows)[0]) < 1e-6


def test_half_precision_gradients_are_weighed_in_float32():
    exact, rounded = Toy(seed=7), Toy(seed=7, dtype=torch.bfloat16)
    for name in ("mean", "cagrad", "upgrad"):
        merged_grads, report = run(rounded, name)
        assert merged_grads[0].dtype == torch.bfloat16
        expected, _ = run(exact, name)
        assert relative(merged_grads, expected) < 0.05
        assert 0 < report.metrics["merge/norm/task0"] < 10
    big = [[torch.full((3,), 300.0, dtype=torch.float16)], [torch.full((3,), 300.0, dtype=torch.float16)]]
    assert gramian(big).tolist() == [[270000.0] * 2] * 2


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_that_is_not_finite_stays_visible(name):
    toy = Toy(seed=7)
    merger = GradientMerger(toy.leaves(), name, monitor=ConflictMonitor(every=1))
    merger.add([
        Term("policy", toy.head.sum() * float("nan"), "maximize", task="a"),
        Term("policy", toy.hidden.sum(), "maximize", task="b"),
    ])  # fmt: skip
    report = merger.finish()
    assert toy.head.grad is not None
    assert not torch.isfinite(toy.head.grad).any()
    assert not [metric for metric in report.metrics if "cosine" in metric]


def test_the_merger_clears_old_gradients_and_starts_over_after_each_step():
    toy = Toy(seed=8)
    once, _ = run(toy, "cagrad")
    merger = GradientMerger(toy.leaves(), "cagrad")
    for _ in range(2):
        for param in toy.leaves():
            param.grad = torch.full_like(param, 99.0)
        merger.add(toy.terms(WHOLE[0]))
        merger.finish()
        merged_grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in toy.leaves()]
        assert relative(merged_grads, once) < 1e-6


def test_low_memory_needs_no_backward_beyond_one_a_task():
    toy = Toy(seed=9)
    counts = {}
    for memory in ("full", "low"):
        merger = GradientMerger(toy.leaves(), "cagrad", memory=memory)
        terms = [term for term in toy.terms(WHOLE[0]) if term.task is not None]
        passes: list[int] = []
        handle = toy.hidden.register_hook(lambda grad, passes=passes: passes.append(1))
        merger.add(terms)
        handle.remove()
        merger.finish()
        counts[memory] = len(passes)
    assert counts == {"full": 3, "low": 2}


def test_low_memory_merges_whole_losses():
    toy = Toy(seed=10)
    terms = [term for term in toy.terms(WHOLE[0]) if term.task is not None]
    gradients = task_gradients(terms, toy.leaves())
    flat = torch.stack([torch.cat([g.flatten() for g in grads]) for grads in gradients.values()]).double()
    merger = GradientMerger(toy.leaves(), "cagrad", memory="low", scale="own")
    merger.add(terms)
    report = merger.finish()
    assert list(report.weights.values()) == pytest.approx(weights("cagrad", flat @ flat.T).tolist(), rel=1e-5)


def conflicting(toy: Toy, sign: float) -> list[Term]:
    out = torch.tanh(toy.x.sum((0, 1)) @ toy.hidden.T).sum() + toy.head.sum()
    return [
        Term("policy", out, "maximize", task="a"),
        Term("policy", sign * out + 0.1 * toy.head[0, 0], "maximize", task="b"),
    ]


def test_the_monitor_switches_merging_on_after_a_streak_of_conflicts():
    toy = Toy(seed=11)
    merger = GradientMerger(toy.leaves(), "sum", monitor=ConflictMonitor(every=1, switch_after=3), switch_to="upgrad")
    seen = []
    for sign in (-1.0, -1.0, 1.0, -1.0, -1.0, -1.0, -1.0):
        merger.add(conflicting(toy, sign))
        report = merger.finish()
        seen.append((report.kind, report.metrics["merge/conflict"], report.switched))
    assert [kind for kind, _, _ in seen] == ["sum"] * 6 + ["upgrad"]
    assert [switched for _, _, switched in seen] == [False] * 5 + [True, False]
    assert [conflict for _, conflict, _ in seen] == [1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]


def test_the_monitor_looks_only_when_it_is_due():
    toy = Toy(seed=12)
    merger = GradientMerger(toy.leaves(), "sum", monitor=ConflictMonitor(every=3))
    looked = []
    for _ in range(7):
        merger.add(conflicting(toy, -1.0))
        looked.append("merge/cosine/a/b" in merger.finish().metrics)
    assert looked == [True, False, False, True, False, False, True]


def test_a_resumed_merger_goes_on_where_the_first_one_stopped():
    def steps(merger: GradientMerger, toy: Toy, count: int) -> list[list[float]]:
        merged_grads = []
        for _ in range(count):
            merger.add(toy.terms(WHOLE[0]))
            merged_grads.append(list(merger.finish().weights.values()))
        return merged_grads

    toy = Toy(seed=13, tasks=4)
    options: dict[str, Any] = {"kind": "pcgrad", "seed": 3}
    whole = steps(GradientMerger(toy.leaves(), **options), toy, 6)
    assert any(a != b for a, b in pairwise(whole))
    first = GradientMerger(toy.leaves(), **options)
    steps(first, toy, 3)
    second = GradientMerger(toy.leaves(), "pcgrad", seed=99)
    second.load_state_dict(first.state_dict())
    assert steps(second, toy, 3) == whole[3:]


def test_a_switch_survives_a_resume():
    toy = Toy(seed=14)
    first = GradientMerger(toy.leaves(), monitor=ConflictMonitor(every=1, switch_after=1))
    first.add(conflicting(toy, -1.0))
    assert first.finish().switched
    second = GradientMerger(toy.leaves(), monitor=ConflictMonitor(every=1, switch_after=1))
    second.load_state_dict(first.state_dict())
    assert second.kind == "cagrad"


def test_ranks_merge_after_reduction_even_where_a_task_is_missing():
    toy = Toy(seed=15)
    expected, _ = run(toy, "cagrad", terms={"bonus": 0.0})
    ranks = [[0, 2, 4], [1, 3, 5, 6, 7]]
    sent: list[list[Tensor]] = []
    for rows in ranks:
        calls: list[Tensor] = []
        merger = GradientMerger(
            toy.leaves(), "cagrad", tasks=["task0", "task1"], reduce=lambda t, c=calls: c.append(t.clone())
        )
        merger.add(toy.terms(rows, bonus=0.0))
        merger.finish()
        sent.append(calls)
    assert len(sent[0]) == len(sent[1]) == 3 * len(toy.leaves())
    for rows, other in zip(ranks, reversed(sent), strict=True):
        incoming = iter(other)
        merger = GradientMerger(
            toy.leaves(), "cagrad", tasks=["task0", "task1"], reduce=lambda t, i=incoming: t.add_(next(i))
        )
        merger.add(toy.terms(rows, bonus=0.0))
        merger.finish()
        assert relative([p.grad for p in toy.leaves()], expected) < 1e-5


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_merge_tasks_in_one_order_whichever_they_meet_first(first: int) -> None:
    toy = Toy(seed=15)
    merger = GradientMerger(toy.leaves(), "pcgrad", tasks=["task0", "task1"], reduce=lambda _: None)
    for task in (f"task{first}", f"task{1 - first}"):
        merger.add([term for term in toy.terms(list(range(8)), bonus=0.0) if term.task == task])
    assert list(merger.finish().weights) == ["task0", "task1"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda toy: GradientMerger(toy.leaves(), "best"), "unknown aggregator 'best'"),
        (lambda toy: GradientMerger(toy.leaves(), switch_to="best"), "unknown aggregator 'best'"),
        (lambda toy: GradientMerger(toy.leaves(), scale="none"), "scale"),
        (lambda toy: GradientMerger(toy.leaves(), reduce=lambda t: None), "names of all tasks"),
        (lambda toy: GradientMerger(toy.leaves()).finish(), "no micro-batch"),
        (lambda toy: GradientMerger(toy.leaves()).add([]), "at least one term"),
        (lambda toy: ConflictMonitor(switch_after=2), "set every"),
        (lambda toy: ConflictMonitor(every=-1), "negative"),
        (lambda toy: ConflictMonitor(every=1, below=2.0), "cosine"),
        (
            lambda toy: GradientMerger(toy.leaves(), "mean").add([Term("policy", toy.head.sum(), "maximize")]),
            "needs a task",
        ),
        (lambda toy: GradientMerger(toy.leaves()).load_state_dict({"kind": "best"}), "unknown aggregator"),
    ],
)
def test_bad_input_raises_one_clear_line(call, message):
    with pytest.raises(ValueError, match=message):
        call(Toy())
