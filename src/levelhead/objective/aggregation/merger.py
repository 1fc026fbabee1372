"""From terms to ``p.grad``, over the micro-batches of one optimizer step: weights, conflicts, the merger."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

import torch
from torch import Tensor

from levelhead import metrics as metric
from levelhead.objective.aggregation.aggregators import AGGREGATORS, Aggregator, make_aggregator
from levelhead.objective.aggregation.buffers import Buffer, combine, gramian, lent, read, write
from levelhead.objective.registry import build
from levelhead.objective.terms import Term, scalar_loss


def weights(
    aggregator: Aggregator | str, gramian_mm: Tensor, *, generator: torch.Generator | None = None, **settings: Any
) -> Tensor:
    """Return the weights of the task gradients, shape (m,), in the Gramian's dtype and device.

    A task whose gradient is zero (below 1e-12 of the largest) gets weight 0 and the others are merged as if it were
    not there, times ``live / m`` where the aggregator is on the mean's scale, so that CAGrad's ball stays around the
    mean of all.  ``sum`` and ``mean`` weigh every task the same.  One task alone is returned as it is.

    Args:
        aggregator: Which, or the name of one in ``AGGREGATORS``.
        gramian_mm: Inner products of the task gradients, symmetric, shape (m, m).
        generator: Source of PCGrad's random order for three tasks or more.
        **settings: Of an aggregator that is given by name; of another they take the place of its own.

    Raises:
        ValueError: If the name is unknown, a setting is out of range, a generator is missing, the Gramian is not a
            finite symmetric matrix, or the aggregator gives another number of weights.
    """
    if isinstance(aggregator, str):
        aggregator = make_aggregator(aggregator, **settings)
    elif settings:
        aggregator = build(type(aggregator), aggregator.model_dump() | settings, f"aggregator {aggregator.name}")
    matrix = _checked(gramian_mm)
    if aggregator.linear:
        return _solved(aggregator, matrix, generator).to(gramian_mm.device, gramian_mm.dtype)
    m = len(matrix)
    squares_m = matrix.diagonal()
    live_m = squares_m > 1e-24 * squares_m.max()
    live = int(live_m.sum())
    result = torch.zeros(m, dtype=matrix.dtype)
    if live > 0:
        unit = matrix[live_m][:, live_m] / squares_m.max()
        own_m = torch.ones(1, dtype=matrix.dtype) if live == 1 else _solved(aggregator, unit, generator)
        result[live_m] = own_m * (live / m if aggregator.scale == "mean" else 1.0)
    return result.to(gramian_mm.device, gramian_mm.dtype)


def _solved(aggregator: Aggregator, gramian_mm: Tensor, generator: torch.Generator | None) -> Tensor:
    weights_m = torch.as_tensor(aggregator.weights(gramian_mm, generator))
    if tuple(weights_m.shape) != (len(gramian_mm),):
        label = aggregator.name or type(aggregator).__name__
        raise ValueError(f"aggregator {label}: weights need shape ({len(gramian_mm)},), got {tuple(weights_m.shape)}")
    return weights_m.to(gramian_mm.dtype)


def _checked(gramian_mm: Tensor) -> Tensor:
    """Return the Gramian as a float64 matrix on the CPU, symmetric to the last bit."""
    if gramian_mm.ndim != 2 or gramian_mm.shape[0] != gramian_mm.shape[1] or len(gramian_mm) == 0:
        raise ValueError(f"a Gramian has shape (m, m), got {tuple(gramian_mm.shape)}")
    matrix = gramian_mm.detach().to("cpu", torch.float64)
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError("the Gramian of the task gradients is not finite")
    scale = float(matrix.diagonal().max())
    if scale < 0 or float((matrix - matrix.T).abs().max()) > 1e-4 * scale:
        raise ValueError("a Gramian is symmetric with a diagonal that is not negative")
    return (matrix + matrix.T) / 2


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


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What one merge of the tasks' gradients did.

    Attributes:
        kind: The aggregator that was used.
        weights: Task name to the weight of its gradient; empty where the tasks were not kept apart.
        metrics: Flat metric name to number: ``merge/weight/<task>``, ``merge/norm/<task>``,
            ``merge/cosine/<a>/<b>``, and the monitor's ``merge/conflict`` and ``merge/conflict_streak``.
        switched: Whether the monitor has switched merging on, from the next step.
    """

    kind: str
    weights: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    switched: bool = False


class GradientMerger:
    """Runs the backward passes of a step and leaves the step's gradient in ``p.grad``.

    With ``sum`` a micro-batch is one backward of the single loss.  Otherwise the merged terms of each task accumulate
    in a buffer of their own and all other terms in another: one backward a task, and one for the rest.
    :meth:`finish` merges the tasks' buffers and adds the rest as it is, so that a KL or entropy coefficient keeps its
    meaning.  The merger owns ``p.grad`` from the first :meth:`add` of a step, which clears it, to :meth:`finish`.

    Args:
        params: Leaves that are trained.
        kind: An aggregator, or the name of one in ``AGGREGATORS``.
        memory: ``full`` as above; ``low`` merges the whole loss of each task, whatever the terms' names: no backward
            for the rest, unless a term has no task.
        scale: ``sum`` multiplies weights on the mean's scale by the number of tasks, so that every aggregator moves as
            far as ``sum`` where the tasks agree (CAGrad ``1 + c`` times as far) and ``mean`` equals ``sum``; ``own``
            leaves the aggregator's scale.
        monitor: Conflict monitor for ``sum``; on the steps it looks at, the tasks are kept apart and summed.
        switch_to: Aggregator that takes over when the monitor asks for it.
        seed: Of an aggregator's random choices, as PCGrad's order.
        tasks: All task names, in one order on all ranks; needed with ``reduce``.
        reduce: Called on each tensor of each buffer before merging, to reduce it over data-parallel ranks in place.
            The forward then runs without the wrapper's own gradient synchronisation.
        total: Called on the Gramian, to add it up in place over processes that hold a piece of each gradient.
        **settings: Of aggregators that are given by name, as CAGrad's ``c``.

    Raises:
        ValueError: If a name or setting is unknown, or ``reduce`` comes without ``tasks``.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        kind: Aggregator | str = "sum",
        *,
        memory: Literal["full", "low"] = "full",
        scale: Literal["sum", "own"] = "sum",
        monitor: ConflictMonitor | None = None,
        switch_to: Aggregator | str = "cagrad",
        seed: int = 0,
        tasks: Sequence[str] = (),
        reduce: Callable[[Tensor], object] | None = None,
        total: Callable[[Tensor], object] | None = None,
        **settings: Any,
    ) -> None:
        if memory not in ("full", "low") or scale not in ("sum", "own"):
            raise ValueError(f"memory must be full or low and scale sum or own, got {memory!r} and {scale!r}")
        if reduce is not None and not tasks:
            raise ValueError("reducing over ranks needs the names of all tasks, in one order everywhere")
        self.params = list(params)
        self._settings = settings
        self.aggregator = self._made(kind)
        """In force."""
        self._switch_to = self._made(switch_to)
        self._own = {_label(own): own for own in (self._switch_to, self.aggregator)}
        self._merges_all = memory == "low"
        self._scale = scale
        self._monitor = monitor or ConflictMonitor()
        self._rng = torch.Generator().manual_seed(seed)
        self._names = tuple(tasks)
        self._reduce, self._total = reduce, total
        self._tasks: dict[str, Buffer] = {}
        self._started = False

    @property
    def kind(self) -> str:
        """Name of the aggregator in force; ``custom`` for one of the user's own."""
        return _label(self.aggregator)

    @property
    def _apart(self) -> bool:
        return self.kind != "sum" or self._monitor.due

    def add(self, terms: Sequence[Term]) -> None:
        """Run the backward passes of one micro-batch; terms of weight 0 cost nothing.

        Raises:
            ValueError: If there are no terms, or a merged term belongs to no task where tasks are kept apart.
        """
        if not terms:
            raise ValueError("a micro-batch needs at least one term")
        self.start()
        live = [term for term in terms if term.weight > 0]
        if not self._apart:
            if live:
                scalar_loss(live).backward()
            return
        groups: dict[str | None, list[Term]] = {}
        for term in live:
            groups.setdefault(self._key(term), []).append(term)
        for index, (task, group) in enumerate(groups.items()):
            retain = index < len(groups) - 1
            if task is None:
                scalar_loss(group).backward(retain_graph=retain)
                continue
            with lent(self.params, self._tasks.setdefault(task, [None] * len(self.params))):
                scalar_loss(group).backward(retain_graph=retain)

    def start(self) -> None:
        """Begin a step, unless it has begun: a step that breaks before its first micro-batch can then be finished."""
        if not self._started:
            write(self.params, [None] * len(self.params))
            self._tasks = {}
            self._started = True

    def _key(self, term: Term) -> str | None:
        """Task under which a term is merged; ``None`` where it goes straight through."""
        if self._merges_all:
            return term.task
        if term.name != "policy":
            return None
        if term.task is None:
            raise ValueError(f"term {term.name!r} is merged by task and needs a task")
        return term.task

    def finish(self) -> MergeReport:
        """Write the merged gradient of all micro-batches into ``p.grad`` and start over.

        A gradient that is not finite is neither hidden nor an error here: the tasks are summed and it stays visible.

        Raises:
            ValueError: If no micro-batch was added.
        """
        if not self._started:
            raise ValueError("finish: no micro-batch was added since the last step")
        if self._reduce is not None:
            self._reduce_all(self._reduce)
        tasks, self._tasks = self._tasks, {}
        report = self._merge(tasks) if tasks else MergeReport(self.kind)
        self._monitor.step += 1
        self._started = False
        if self.kind == "sum" and 0 < self._monitor.switch_after <= self._monitor.streak:
            self.aggregator = self._switch_to
            return MergeReport(report.kind, report.weights, report.metrics, switched=True)
        return report

    def _merge(self, tasks: Mapping[str, Buffer]) -> MergeReport:
        names = list(tasks)
        products_mm = gramian(list(tasks.values()))
        if self._total is not None:
            self._total(products_mm)
        shares = self._weights(products_mm)
        for index, param in enumerate(self.params):
            parts, rest = [tasks[name][index] for name in names], param.grad
            param.grad = combine([*zip(shares, parts, strict=True), (1.0, rest)])
        norms = {name: float(products_mm[i, i].sqrt()) for i, name in enumerate(names)}
        cosines = {
            metric.MERGE_COSINE.of(a, b): float(products_mm[i, j]) / (norms[a] * norms[b])
            for (i, a), (j, b) in combinations(enumerate(names), 2)
            if 0 < norms[a] < math.inf and 0 < norms[b] < math.inf
        }
        by_task = dict(zip(names, shares, strict=True))
        metrics = {metric.MERGE_WEIGHT.of(name): weight for name, weight in by_task.items()}
        metrics |= {metric.MERGE_NORM.of(name): norm for name, norm in norms.items() if math.isfinite(norm)}
        return MergeReport(self.kind, by_task, metrics | cosines | self._monitor.seen(cosines))

    def _weights(self, products_mm: Tensor) -> list[float]:
        """Weights on the scale that was asked for; a gradient that is not finite is summed, for the caller to see."""
        m = len(products_mm)
        if not bool(torch.isfinite(products_mm).all()):
            return [1.0] * m
        factor = m if self._scale == "sum" and self.aggregator.scale == "mean" else 1
        merged_weights: list[float] = (weights(self.aggregator, products_mm, generator=self._rng) * factor).tolist()
        return merged_weights

    def _made(self, given: Aggregator | str) -> Aggregator:
        return make_aggregator(given, **self._settings) if isinstance(given, str) else given

    def _reduce_all(self, reduce: Callable[[Tensor], object]) -> None:
        """Reduce the buffers in the same order on every rank, and keep it; what is absent here is zero, not skipped.

        A task that is zero on all ranks had no term anywhere, and is not merged, as on a single rank.
        """
        names = self._names if self._apart else ()
        for name in names:
            self._tasks.setdefault(name, [None] * len(self.params))
        unknown = set(self._tasks) - set(names)
        if unknown:
            raise ValueError(f"task {min(unknown)!r} is not among the merger's tasks {list(self._names)}")
        straight = read(self.params)
        for buffer in (straight, *(self._tasks[name] for name in names)):
            for index, param in enumerate(self.params):
                grad = buffer[index]
                whole = torch.zeros_like(param) if grad is None else grad
                reduce(whole)
                buffer[index] = whole
        buffers = {name: self._tasks[name] for name in names}
        self._tasks = {name: b for name, b in buffers.items() if any(g is not None and bool(g.any()) for g in b)}
        write(self.params, straight)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs: the aggregator in force, the monitor's counters, the generator."""
        return {
            "kind": self.kind,
            "step": self._monitor.step,
            "streak": self._monitor.streak,
            "generator": self._rng.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned.

        Raises:
            ValueError: If the saved aggregator is unknown.
        """
        self.aggregator = self._own.get(state["kind"]) or self._made(state["kind"])
        self._monitor.step = int(state["step"])
        self._monitor.streak = int(state["streak"])
        self._rng.set_state(state["generator"].cpu())


def _label(aggregator: Aggregator) -> str:
    return aggregator.name if AGGREGATORS.get(aggregator.name) is type(aggregator) else "custom"
