"""The aggregators' own arithmetic on a small Gramian of two or more live tasks, float64 on the CPU.

Two tasks are solved in closed form.  More go to torchjd's weightings (Quinton and Rey 2024), given the Gramian divided
by its largest entry: torchjd takes a Gramian whose trace is below 1e-4 for zero, and gradients of a policy late in
training are that small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from levelhead.installation import install_command

TINY = 1e-12
"""A merged gradient shorter than this against the longest task gradient counts as zero."""
RIDGE = 1e-10
"""Added to the cosines of Nash-MTL, so that gradients that cancel have weights, however large."""
NEWTON_STEPS = 500
"""Newton steps at most; a dozen do but where gradients all but cancel."""


def cagrad(gramian_mm: Tensor, c: float) -> Tensor:
    """Weights of ``d = g0 + c |g0| g_w / |g_w|`` (Liu et al. 2021, alg. 1), g0 the mean of the task gradients.

    d maximises the smallest ``g_i . d`` in the ball of radius ``c |g0|`` around g0; w minimises
    ``g_w . g0 + c |g0| |g_w|`` on the simplex.  Where g0 or g_w vanishes the answer is g0.
    """
    mean_m = torch.full((len(gramian_mm),), 1 / len(gramian_mm), dtype=gramian_mm.dtype)
    radius = c * _norm(gramian_mm, mean_m)
    if radius <= TINY:
        return mean_m
    if len(gramian_mm) > 2:
        torchjd_weights = _torchjd(lambda jd, g: jd.CAGradWeighting(c=c, norm_eps=TINY)(g), gramian_mm, "cagrad")
        return torchjd_weights if bool((torchjd_weights != 0).any()) else mean_m
    w_m = _cagrad_pair(gramian_mm, radius)
    norm = _norm(gramian_mm, w_m)
    return mean_m + radius / norm * w_m if norm > TINY else mean_m


def _cagrad_pair(gramian_mm: Tensor, radius: float) -> Tensor:
    """Minimise ``g_w . g0 + radius |g_w|`` over ``w = (w, 1 - w)``, where the derivative in w changes sign."""
    a, b, d = _pair(gramian_mm)
    spread = a - 2 * b + d
    slope = (a - d) / 2 / radius
    if spread <= 0:
        w = 0.5
    elif slope * slope >= spread:
        w = 0.0 if slope > 0 else 1.0
    else:
        w = ((d - b) - slope * math.sqrt(max(a * d - b * b, 0.0) / (spread - slope * slope))) / spread
    w = min(max(w, 0.0), 1.0)
    return torch.tensor([w, 1 - w], dtype=gramian_mm.dtype)


def pcgrad(gramian_mm: Tensor, generator: torch.Generator | None) -> Tensor:
    """Sum of the task gradients, each projected off every other it conflicts with, in random order (Yu et al. 2020).

    Two tasks leave no order to draw.

    Raises:
        ValueError: If there are more than two tasks and no generator.
    """
    m = len(gramian_mm)
    if m > 2 and generator is None:
        raise ValueError("pcgrad on three tasks or more draws an order at random and needs a generator")
    total_m = torch.zeros(m, dtype=gramian_mm.dtype)
    for i in range(m):
        own_m = torch.zeros(m, dtype=gramian_mm.dtype)
        own_m[i] = 1.0
        order = torch.randperm(m, generator=generator).tolist() if m > 2 else [0, 1]
        for j in order:
            product = float(gramian_mm[j] @ own_m)
            if j != i and product < 0:
                own_m[j] -= product / float(gramian_mm[j, j])
        total_m += own_m
    return total_m


def upgrad(gramian_mm: Tensor) -> Tensor:
    """Mean of the task gradients, each projected onto the cone that conflicts with none (Quinton and Rey 2024)."""
    if len(gramian_mm) == 2:
        return pcgrad(gramian_mm, None) / 2
    return _torchjd(lambda jd, g: jd.UPGradWeighting(projector=_projector())(g), gramian_mm, "upgrad")


def mgda(gramian_mm: Tensor) -> Tensor:
    """Convex combination of smallest norm (Desideri 2012; Sener and Koltun 2018).

    More than two tasks are solved by Frank-Wolfe steps to about three digits.
    """
    if len(gramian_mm) == 2:
        a, b, d = _pair(gramian_mm)
        spread = a - 2 * b + d
        w = min(max((d - b) / spread, 0.0), 1.0) if spread > 0 else 0.5
        return torch.tensor([w, 1 - w], dtype=gramian_mm.dtype)
    return _torchjd(lambda jd, g: jd.MGDAWeighting(epsilon=1e-4, max_iters=300)(g), gramian_mm, "mgda")


def aligned_mtl(gramian_mm: Tensor) -> Tensor:
    """``sqrt(lambda_min) V diag(lambda**-1/2) V^T 1/m`` (Senushkin et al. 2023): equal singular values, the smallest.

    Eigenvalues within rounding of zero are left out.
    """
    values_m, vectors_mm = torch.linalg.eigh(gramian_mm)
    positive_m = values_m > values_m.max() * len(gramian_mm) * torch.finfo(gramian_mm.dtype).eps
    scaled_mk = vectors_mm[:, positive_m] * (values_m[positive_m].min() / values_m[positive_m]).sqrt()
    combined_k: Tensor = scaled_mk @ vectors_mm[:, positive_m].T.mean(dim=1)
    return combined_k


def nash_mtl(gramian_mm: Tensor) -> Tensor:
    """Weights a > 0 with ``a_i (G a)_i = |G|`` for every task, ``|G|`` the Frobenius norm (Navon et al. 2022, eq. 3).

    The direction d in a ball that maximises ``sum_i log(g_i . d)``; the authors' code divides G by its Frobenius norm
    first, which sets the length, ``sqrt(m |G|)``.  They are the minimum of ``a G a / 2 - sum_i log a_i``, found by
    damped Newton steps (the function is self-concordant) on gradients of length 1.  Gradients that cancel leave nothing
    to agree on: cosines are held :data:`RIDGE` above that.
    """
    norms_m = gramian_mm.diagonal().sqrt()
    cosines_mm = gramian_mm / (norms_m[:, None] * norms_m)
    cosines_mm = cosines_mm + RIDGE * torch.eye(len(gramian_mm), dtype=gramian_mm.dtype)
    unit_m = torch.full_like(norms_m, len(gramian_mm) ** -0.5)
    for _ in range(NEWTON_STEPS):
        slope_m = cosines_mm @ unit_m - 1 / unit_m
        step_m = -torch.linalg.solve(cosines_mm + torch.diag(unit_m**-2), slope_m)
        decrement = math.sqrt(max(-float(slope_m @ step_m), 0.0))
        unit_m = unit_m + step_m / (1 + decrement if decrement > 0.25 else 1.0)
        if decrement < TINY:
            break
    nash_m: Tensor = unit_m / norms_m * torch.linalg.matrix_norm(gramian_mm).sqrt()
    return nash_m


def _pair(gramian_mm: Tensor) -> tuple[float, float, float]:
    return float(gramian_mm[0, 0]), float(gramian_mm[0, 1]), float(gramian_mm[1, 1])


def _norm(gramian_mm: Tensor, w_m: Tensor) -> float:
    return math.sqrt(max(float(w_m @ gramian_mm @ w_m), 0.0))


def _torchjd(solve: Callable[[Any, Tensor], Tensor], gramian_mm: Tensor, name: str) -> Tensor:
    """Run a torchjd weighting, whose solvers the extra ``merge`` brings."""
    try:
        from torchjd import aggregation

        solved_m: Tensor = solve(aggregation, gramian_mm)
    except ImportError as error:
        how = install_command("merge")
        raise ImportError(f"{name} on three tasks or more needs torchjd's solvers; {how}") from error
    return solved_m


def _projector() -> Any:
    from torchjd.linalg import QuadprogProjector

    return QuadprogProjector(norm_eps=TINY, reg_eps=1e-9)
