"""Identities of merged gradients: each aggregator keeps what its paper promises, and nothing more is asked of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from levelhead.objective.aggregation import MergeReport
from levelhead.objective.numerics import dot, local
from levelhead.recipe.objective import MergeSection
from levelhead.recipe.variants import CUSTOM
from oracle.violation import Violation

LOOKED_AT = 4096
"""Entries of each tensor at which the merged gradient is held against its parts."""
ERROR = 1e-3
"""Relative error of inner products and weights in float32; ten times that for gradients in half precision."""
ROUGH = 5e-2
"""Relative error of solvers that iterate: MGDA's and CAGrad's on three tasks and more."""
SUMS = frozenset({"sum", "pcgrad", "nash_mtl"})
"""Aggregators on the sum's scale."""
ZERO = 1e-24
"""A squared norm below this, against the largest, counts as zero."""


class MergeWitness:
    """Is shown the gradient of each task and what they were merged to, tensor by tensor."""

    def __init__(self, total: Callable[[Tensor], None] | None = None) -> None:
        """Begin; ``total`` adds up sums over processes that hold a piece of each gradient."""
        self._total = total
        self._products = torch.zeros(0, 0, dtype=torch.float64)
        self._left = self._whole = 0.0
        self._coarse = False

    def start(self) -> None:
        """Forget what was seen of the merge before."""
        self.__init__(self._total)  # type: ignore[misc]

    def see(
        self, parts: Sequence[Tensor | None], rest: Tensor | None, merged: Tensor | None, weights: Sequence[float]
    ) -> None:
        """Take in one tensor: of each task, what goes straight through, what they became, and by which weights."""
        m = len(parts)
        if len(self._products) != m:
            self._products = torch.zeros(m, m, dtype=torch.float64)
        for i, a in enumerate(parts):
            for j, b in enumerate(parts[: i + 1]):
                if a is not None and b is not None:
                    self._products[i, j] += dot(a, b)
                    self._products[j, i] = self._products[i, j]
        if merged is None:
            return
        self._coarse |= merged.dtype.itemsize < 4
        here = local(merged).detach()
        few = max(here.numel() // LOOKED_AT, 1)
        seen = here.reshape(-1)[::few].double()
        for weight, part in [*zip(weights, parts, strict=True), (1.0, rest)]:
            if part is not None:
                piece = weight * local(part).detach().reshape(-1)[::few].double()
                seen = seen - piece
                self._whole += float(piece.square().sum())
        self._left += float(seen.square().sum())

    def _add_up(self) -> None:
        if self._total is None:
            return
        self._total(self._products)
        sums = torch.tensor([self._left, self._whole], dtype=torch.float64)
        self._total(sums)
        self._left, self._whole = sums.tolist()

    def judge(self, report: MergeReport, merge: MergeSection) -> Iterator[Violation]:
        """The merged gradient is the weighted sum of the tasks', and the weights keep the aggregator's promise."""
        if report.weights:
            self._add_up()
        names, w_m = list(report.weights), torch.tensor(list(report.weights.values()), dtype=torch.float64)
        if not names or len(self._products) != len(names) or not bool(torch.isfinite(self._products).all()):
            return
        error = ERROR * (10 if self._coarse else 1)
        shown = {f"weight/{name}": float(w) for name, w in zip(names, w_m, strict=True)}
        if not math.sqrt(self._left) <= error * math.sqrt(self._whole):
            text = (
                f"the merged gradient is not the sum of the tasks' gradients by their weights: "
                f"{math.sqrt(self._left / self._whole) if self._whole else math.inf:.2%} of it is something else"
            )
            yield Violation("merge-promise", text, shown)
        broken = promise(report.kind, self._products, w_m, merge, error)
        if broken is not None:
            cosines = _cosines(self._products)
            text = f"{report.kind} promises that {broken}; weights {_numbers(w_m)}, cosines {_numbers(cosines)}"
            yield Violation("merge-promise", text, {**shown, "kind": report.kind})


def promise(kind: str, products_mm: Tensor, weights_m: Tensor, merge: MergeSection, error: float = ERROR) -> str | None:
    """Return the promise of an aggregator that weights do not keep, or ``None``; one of the user's own has made none.

    Args:
        kind: Of the aggregator.
        products_mm: Inner products of the m task gradients, shape (m, m).
        weights_m: Of the task gradients in the merged one, shape (m,).
        merge: For CAGrad's radius, and the scale that weights come in.
        error: Relative, that rounding explains.
    """
    if kind == CUSTOM:
        return None
    m = len(products_mm)
    norm = m if merge.scale == "sum" and kind not in SUMS else 1
    if kind in ("sum", "mean"):
        wanted = (1.0 if kind == "sum" else 1.0 / m) * norm
        even = bool(((weights_m - wanted).abs() <= error).all())
        return None if even else f"every task has weight {wanted:.4g}"
    squares_m = products_mm.diagonal()
    top = float(squares_m.max())
    live_m = squares_m > ZERO * top
    live = int(live_m.sum())
    if bool((weights_m[~live_m] != 0).any()):
        return "a task without a gradient has no weight"
    if not live:
        return None
    u_m = weights_m[live_m] / norm * (1 if kind in SUMS else m / live)
    if live == 1:
        return None if abs(float(u_m[0]) - 1) <= error else "one task alone is taken as it is"
    return PROMISES[kind](products_mm[live_m][:, live_m] / top, u_m, merge, error)


def _conflicts(products_mm: Tensor) -> bool:
    return bool((products_mm < 0).any())


def _alike(seen_m: Tensor, wanted: float, error: float) -> bool:
    return bool(((seen_m - wanted).abs() <= error).all())


def _pcgrad(products_mm: Tensor, u_m: Tensor, _merge: MergeSection, error: float) -> str | None:
    """Yu et al. 2020: what conflicts is projected off; two tasks are then against neither."""
    if not _conflicts(products_mm):
        return None if _alike(u_m, 1.0, error) else "tasks that do not conflict are summed"
    if bool((u_m < 1 - error).any()):
        return "projections take nothing off a task's own weight of 1"
    along_m = products_mm @ u_m
    if len(u_m) == 2 and bool((along_m < -error * products_mm.diagonal().sqrt()).any()):
        return "the merged gradient is against neither of two tasks"
    return None


def _upgrad(products_mm: Tensor, u_m: Tensor, _merge: MergeSection, error: float) -> str | None:
    """Quinton and Rey 2024: the merged gradient conflicts with no task."""
    if not _conflicts(products_mm):
        return None if _alike(u_m, 1 / len(u_m), error) else "tasks that do not conflict are averaged"
    if bool((products_mm @ u_m < -error * products_mm.diagonal().sqrt()).any()):
        return "the merged gradient conflicts with no task"
    return None


def _mgda(products_mm: Tensor, u_m: Tensor, _merge: MergeSection, error: float) -> str | None:
    """Desideri 2012: the shortest convex combination, along which every task falls at least as the whole does."""
    if bool((u_m < -error).any()) or abs(float(u_m.sum()) - 1) > error:
        return "weights are a convex combination"
    along_m, square = products_mm @ u_m, float(u_m @ products_mm @ u_m)
    slack = (error if len(u_m) == 2 else ROUGH) * math.sqrt(float(products_mm.diagonal().max()) * max(square, 0.0))
    slack += error * float(products_mm.diagonal().min())
    return None if bool((along_m >= square - slack).all()) else "no convex combination is shorter"


def _cagrad(products_mm: Tensor, u_m: Tensor, merge: MergeSection, error: float) -> str | None:
    """Liu et al. 2021: within ``c |g0|`` of the mean g0, and the task that gains least gains no less than by g0."""
    off_m = u_m - 1 / len(u_m)
    mean_m = torch.full_like(u_m, 1 / len(u_m))
    away = math.sqrt(max(float(off_m @ products_mm @ off_m), 0.0))
    reach = merge.c * math.sqrt(max(float(mean_m @ products_mm @ mean_m), 0.0))
    if away > reach * (1 + 10 * error) + error:
        return (
            f"it stays within {merge.c:g} of the mean gradient's length of it (it is {away:.3g} away, not {reach:.3g})"
        )
    least, before = float((products_mm @ u_m).min()), float((products_mm @ mean_m).min())
    slack = (error if len(u_m) == 2 else ROUGH) * max(abs(before), reach)
    return None if least >= before - slack - error**2 else "the task that gains least gains no less than by the mean"


def _aligned_mtl(products_mm: Tensor, u_m: Tensor, _merge: MergeSection, error: float) -> str | None:
    """Senushkin et al. 2023: task gradients made orthogonal, all as long as the smallest singular value."""
    values_m, vectors_mm = torch.linalg.eigh(products_mm)
    positive_m = values_m > 1e-9 * values_m.max()
    if bool(((values_m > 1e-14 * values_m.max()) & (values_m < 1e-6 * values_m.max())).any()):
        return None  # which singular values count is a matter of rounding
    mean_k = vectors_mm[:, positive_m].T @ torch.full_like(u_m, 1 / len(u_m))
    wanted = float(values_m[positive_m].min() * mean_k.square().sum())
    square = float(u_m @ products_mm @ u_m)
    if abs(square - wanted) > 10 * error * wanted:
        return "it is as long as the smallest singular value makes it"
    return None


def _nash_mtl(products_mm: Tensor, u_m: Tensor, _merge: MergeSection, error: float) -> str | None:
    """Navon et al. 2022: every task's weight times what it gains is the Frobenius norm of the Gramian."""
    if bool((u_m <= 0).any()):
        return "weights are positive"
    gains_m = u_m * (products_mm @ u_m)
    wanted = float(torch.linalg.matrix_norm(products_mm))
    noise_m = error * u_m * (products_mm.abs() @ u_m)  # what rounding leaves of gradients that all but cancel
    if bool(((gains_m - wanted).abs() > 10 * error * wanted + noise_m).any()):
        return "every task's weight times its gain is the same, the norm of the Gramian"
    return None


PROMISES: Mapping[str, Callable[[Tensor, Tensor, MergeSection, float], str | None]] = {
    "pcgrad": _pcgrad,
    "upgrad": _upgrad,
    "mgda": _mgda,
    "cagrad": _cagrad,
    "aligned_mtl": _aligned_mtl,
    "nash_mtl": _nash_mtl,
}
"""What each aggregator promises, on the Gramian of two or more live tasks divided by its largest entry."""


def _cosines(products_mm: Tensor) -> Tensor:
    norms_m = products_mm.diagonal().clamp(min=0).sqrt()
    rows, columns = torch.triu_indices(len(products_mm), len(products_mm), 1)
    return products_mm[rows, columns] / (norms_m[rows] * norms_m[columns]).clamp(min=1e-300)


def _numbers(values: Tensor) -> str:
    return ", ".join(f"{value:.4g}" for value in values.flatten().tolist()) or "none"
