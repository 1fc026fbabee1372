"""From terms to ``p.grad``, over the micro-batches of one optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import torch
from torch import Tensor

from levelhead.objective.surgery.weights import AGGREGATORS, weights
from levelhead.objective.terms import Term, scalar_loss

Buffer = list[Tensor | None]


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge did.

    Attributes:
        kind: The aggregator that was used.
        weights: Task name to the weight of its gradient; empty where nothing was merged.
        metrics: Flat metric name to number: ``merge/weight/<task>``, ``merge/norm/<task>``,
            ``merge/cosine/<a>/<b>``.
    """

    kind: str
    weights: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


def gramian(gradients: Sequence[Buffer]) -> Tensor:
    """Return the inner products of m gradients, each a list of tensors (``None`` is zero), shape (m, m), float64.

    Products are taken in float32 or better, one parameter at a time; no gradient is stacked or copied whole.
    """
    m = len(gradients)
    result = torch.zeros(m, m, dtype=torch.float64)
    for pieces in zip(*gradients, strict=True):
        flat = [
            None if g is None else g.detach().flatten().to(torch.promote_types(g.dtype, torch.float32)) for g in pieces
        ]
        for i in range(m):
            for j in range(i, m):
                a, b = flat[i], flat[j]
                if a is not None and b is not None:
                    result[i, j] += torch.dot(a, b).item()
    return result + result.triu(1).T


class GradientMerger:
    """Runs the backward passes of a step and leaves the step's gradient in ``p.grad``.

    With ``sum`` each micro-batch is one backward of the single loss.  Otherwise the reward terms of each task
    accumulate in a buffer of their own, the other terms go straight through in another, and :meth:`finish` merges the
    tasks' buffers and adds the straight one.  The merger owns ``p.grad`` from the first :meth:`add` of a step, which
    clears it, to :meth:`finish`.

    Args:
        params: Leaves that are trained.
        kind: One of ``AGGREGATORS``.
        c: CAGrad's radius.
        merged: Names of the terms that are merged by task; all others go straight through with their own weights.
        scale: ``sum`` multiplies weights on the mean's scale by the number of tasks, so that every aggregator moves as
            far as ``sum`` where the tasks agree and a KL or entropy coefficient means the same under all of them
            (``mean`` then equals ``sum``); ``own`` leaves the aggregator's scale.
        reduce: Called on each buffer's tensors before merging, to reduce them over data-parallel ranks in place.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        kind: str = "sum",
        *,
        c: float = 0.4,
        merged: Collection[str] = ("policy",),
        scale: str = "sum",
        reduce: Callable[[Tensor], None] | None = None,
    ) -> None:
        if kind not in AGGREGATORS:
            raise ValueError(f"unknown aggregator {kind!r}; choose one of {', '.join(AGGREGATORS)}")
        if scale not in ("sum", "own"):
            raise ValueError(f"scale must be 'sum' or 'own', got {scale!r}")
        self.params = list(params)
        self.kind = kind
        self.c = c
        self.merged = frozenset(merged)
        self.scale = scale
        self.reduce = reduce
        self._tasks: dict[str, Buffer] = {}
        self._started = False

    def add(self, terms: Sequence[Term]) -> None:
        """Run the backward of one micro-batch; terms of weight 0 cost nothing.

        Raises:
            ValueError: If there are no terms, or a merged term belongs to no task where tasks are merged.
        """
        if not terms:
            raise ValueError("a micro-batch needs at least one term")
        if not self._started:
            self._set([None] * len(self.params))
            self._tasks = {}
            self._started = True
        live = [term for term in terms if term.weight > 0]
        if self.kind == "sum":
            if live:
                scalar_loss(live).backward()  # type: ignore[no-untyped-call]
            return
        groups: dict[str | None, list[Term]] = {}
        for term in live:
            key = term.task if term.name in self.merged else None
            if key is None and term.name in self.merged:
                raise ValueError(f"term {term.name!r} is merged by task and needs a task")
            groups.setdefault(key, []).append(term)
        for index, (task, group) in enumerate(groups.items()):
            self._backward(task, group, retain=index < len(groups) - 1)

    def finish(self) -> MergeReport:
        """Write the merged gradient of all micro-batches into ``p.grad`` and start over.

        Raises:
            ValueError: If no micro-batch was added.
        """
        if not self._started:
            raise ValueError("finish: no micro-batch was added since the last step")
        self._started = False
        if self.reduce is not None:
            for buffer in (self._grads(), *self._tasks.values()):
                for grad in buffer:
                    if grad is not None:
                        self.reduce(grad)
        if self.kind == "sum":
            return MergeReport("sum")
        tasks, self._tasks = self._tasks, {}
        if not tasks:
            return MergeReport(self.kind)
        return self._merge(tasks)

    def _merge(self, tasks: Mapping[str, Buffer]) -> MergeReport:
        names = list(tasks)
        products = gramian([tasks[name] for name in names])
        factor = len(names) if self.scale == "sum" and AGGREGATORS[self.kind].scale == "mean" else 1
        weights_m = (weights(self.kind, products, c=self.c) * factor).tolist()
        for index, param in enumerate(self.params):
            pieces = [(w, tasks[name][index]) for w, name in zip(weights_m, names, strict=True)]
            param.grad = _combine([*pieces, (1.0, param.grad)])
        found = dict(zip(names, weights_m, strict=True))
        return MergeReport(self.kind, found, _metrics(found, names, products))

    def _backward(self, task: str | None, terms: Sequence[Term], *, retain: bool) -> None:
        """Accumulate the gradient of ``terms`` into the task's buffer, by lending it to ``p.grad`` for the backward."""
        loss = scalar_loss(terms)
        if task is None:
            loss.backward(retain_graph=retain)  # type: ignore[no-untyped-call]
            return
        straight = self._grads()
        self._set(self._tasks.get(task, [None] * len(self.params)))
        try:
            loss.backward(retain_graph=retain)  # type: ignore[no-untyped-call]
            self._tasks[task] = self._grads()
        finally:
            self._set(straight)

    def _grads(self) -> Buffer:
        return [param.grad for param in self.params]

    def _set(self, buffer: Sequence[Tensor | None]) -> None:
        for param, grad in zip(self.params, buffer, strict=True):
            param.grad = grad


def _combine(pieces: Sequence[tuple[float, Tensor | None]]) -> Tensor | None:
    """Return the weighted sum of the tensors that exist, added in float32 or better and cast back."""
    present = [(weight, grad) for weight, grad in pieces if grad is not None]
    if not present:
        return None
    dtype = present[0][1].dtype
    total = torch.zeros_like(present[0][1], dtype=torch.promote_types(dtype, torch.float32))
    for weight, grad in present:
        total.add_(grad, alpha=weight)
    return total.to(dtype)


def _metrics(found: Mapping[str, float], names: Sequence[str], products: Tensor) -> dict[str, float]:
    """Return weights, norms and cosines; a cosine with a zero gradient does not exist and is left out."""
    norms = {name: math.sqrt(float(products[i, i])) for i, name in enumerate(names)}
    metrics = {f"merge/weight/{name}": weight for name, weight in found.items()}
    metrics |= {f"merge/norm/{name}": norm for name, norm in norms.items()}
    for (i, a), (j, b) in combinations(enumerate(names), 2):
        if norms[a] > 0 and norms[b] > 0:
            metrics[f"merge/cosine/{a}/{b}"] = float(products[i, j]) / (norms[a] * norms[b])
    return metrics
