"""Aggregators of task gradients, one class each: its settings, what it says of itself, and its weights.

A merged gradient is ``sum_i w_i g_i``; every aggregator computes ``w`` from the m x m matrix of inner products
``G_ij = g_i . g_j``, whatever the size of the model.  This module imports no torch, since recipes are read where there
is none.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from levelhead.installation import install_command
from levelhead.objective.registry import build, owners, registry
from levelhead.section import Section

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Aggregator(Section):
    """A rule that merges task gradients: its fields are its settings, :meth:`weights` is its rule.

    A subclass is a whole aggregator; the docstring of a field is the documentation of its key ``grpo.merge.<field>``.
    """

    name: ClassVar[str] = ""
    """Its ``grpo.merge.kind``; a class of your own needs none."""
    scale: ClassVar[Literal["sum", "mean"]] = "mean"
    """``sum`` if m equal gradients g merge to ``m g``, ``mean`` if to g (CAGrad: ``(1 + c) g``)."""
    linear: ClassVar[bool] = False
    """Whether it weighs every task the same, whatever its gradient."""

    solvers: ClassVar[tuple[str, ...]] = ()
    """Packages of the extra ``merge`` that solve for three tasks or more."""

    def require_solver(self) -> None:
        """Check that what merges three tasks or more is installed.

        Raises:
            ImportError: It is not.
        """
        missing = [name for name in self.solvers if find_spec(name) is None]
        if missing:
            raise ImportError(
                f"{self.name} on three tasks or more needs {' and '.join(missing)}, which is not installed; "
                f"{install_command('merge')}"
            )

    def weights(self, gramian_mm: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the weights of m tasks, shape (m,), m >= 2 unless linear.

        Args:
            gramian_mm: Inner products of the gradients of the tasks that have one, shape (m, m), float64 on the CPU,
                divided by the largest squared norm; of all tasks as they are where the aggregator is linear.
            generator: Source of randomness, the same on all ranks; its state is saved with checkpoints.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method weights(self, gramian_mm, generator)")


class Sum(Aggregator):
    """The sum of the task gradients: the gradient of the one loss."""

    name = "sum"
    scale = "sum"
    linear = True

    def weights(self, gramian_mm: Tensor, generator: torch.Generator | None) -> Tensor:  # noqa: ARG002
        """Return ones, (m,): the sum of the gradients."""
        return gramian_mm.new_ones(len(gramian_mm))


class Mean(Aggregator):
    """The mean of the task gradients."""

    name = "mean"
    linear = True

    def weights(self, gramian_mm: Tensor, generator: torch.Generator | None) -> Tensor:  # noqa: ARG002
        """Return ``1 / m`` for each of m gradients, (m,): their mean."""
        return gramian_mm.new_ones(len(gramian_mm)) / len(gramian_mm)


class CaGrad(Aggregator):
    """The gradient near the mean by which the task that gains least gains most (Liu et al. 2021)."""

    name = "cagrad"
    solvers = ("torchjd", "cvxpy")
    c: float = Field(0.4, ge=0, lt=1)
    """CAGrad's radius: 0 is the mean."""

    def weights(self, gramian_mm: Tensor, generator: torch.Generator | None) -> Tensor:  # noqa: ARG002
        """Return the weights that :func:`levelhead.objective.aggregation.solvers.cagrad` computes."""
        from levelhead.objective.aggregation.solvers import cagrad

        return cagrad(gramian_mm, self.c)


class PcGrad(Aggregator):
    """The sum of the task gradients, each projected off those that it conflicts with (Yu et al. 2020)."""

    name = "pcgrad"
    scale = "sum"

    def weights(self, gramian_mm: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the weights that :func:`levelhead.objective.aggregation.solvers.pcgrad` computes."""
        from levelhead.objective.aggregation.solvers import pcgrad

        return pcgrad(gramian_mm, generator)


class UpGrad(Aggregator):
    """The mean of the task gradients, each projected onto the cone that conflicts with none (Quinton and Rey 2024)."""

    name = "upgrad"
    solvers = ("torchjd", "quadprog")

    def weights(self, gramian_mm: Tensor, generator: torch.Generator | None) -> Tensor:  # noqa: ARG002
        """Return the weights that :func:`levelhead.objective.aggregation.solvers.upgrad` computes."""
        from levelhead.objective.aggregation.solvers import upgrad

        return upgrad(gramian_mm)


class Mgda(Aggregator):
    """The convex combination of smallest norm (Desideri 2012; Sener and Koltun 2018)."""

    name = "mgda"
    solvers = ("torchjd",)

    def weights(self, gramian_mm: Tensor, generator: torch.Generator | None) -> Tensor:  # noqa: ARG002
        """Return the weights that :func:`levelhead.objective.aggregation.solvers.mgda` computes."""
        from levelhead.objective.aggregation.solvers import mgda

        return mgda(gramian_mm)


class AlignedMtl(Aggregator):
    """Task gradients made orthogonal and as long as the smallest singular value (Senushkin et al. 2023)."""

    name = "aligned_mtl"

    def weights(self, gramian_mm: Tensor, generator: torch.Generator | None) -> Tensor:  # noqa: ARG002
        """Return the weights that :func:`levelhead.objective.aggregation.solvers.aligned_mtl` computes."""
        from levelhead.objective.aggregation.solvers import aligned_mtl

        return aligned_mtl(gramian_mm)


class NashMtl(Aggregator):
    """The gradient that the tasks agree on in Nash's bargain: gains as a product, no task's unit matters.

    Navon et al. 2022, arXiv:2202.01017.
    """

    name = "nash_mtl"
    scale = "sum"

    def weights(self, gramian_mm: Tensor, generator: torch.Generator | None) -> Tensor:  # noqa: ARG002
        """Return the weights that :func:`levelhead.objective.aggregation.solvers.nash_mtl` computes."""
        from levelhead.objective.aggregation.solvers import nash_mtl

        return nash_mtl(gramian_mm)


AGGREGATORS = registry(__name__, Aggregator, [Sum, Mean, CaGrad, PcGrad, UpGrad, Mgda, AlignedMtl, NashMtl])
"""Every aggregator by the name that it has in a recipe."""


def make_aggregator(name: str, **settings: Any) -> Aggregator:
    """Return the aggregator called ``name``; settings that only others have are left aside.

    Raises:
        ValueError: Unknown name, or a setting that none has or that is out of range.
    """
    if name not in AGGREGATORS:
        raise ValueError(f"unknown aggregator {name!r}; choose one of {', '.join(AGGREGATORS)}")
    own = {key: value for key, value in settings.items() if key in AGGREGATORS[name].model_fields}
    strange = {key: value for key, value in settings.items() if not owners(AGGREGATORS, key)}
    return build(AGGREGATORS[name], own | strange, f"aggregator {name}")
