"""Looks on at every update of a stage: gradient, clipping, optimizer, weights, and what must not move at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from levelhead.objective.numerics import local
from levelhead.policy.policy import Policy
from levelhead.training.optim import Updater
from oracle import adamw, entries
from oracle.optimizer_steps import ROUNDED, STEP, Step
from oracle.violation import Violation, close, some

COARSE = 0.15
"""Relative difference of updates whose moments are kept in half precision from ones in float64."""
NORMS = 1e-3
"""Relative difference of two norms of one gradient, or two ways to scale it; ten times that in half precision."""


def largest(tensor: Tensor) -> Tensor:
    """Places of the K entries of largest size, shape (K,); spread ones where all entries are 0 or there are few."""
    flat = local(tensor).detach().reshape(-1)
    if flat.numel() < entries.K or not bool(torch.isfinite(flat).all()) or not bool(flat.any()):
        return entries.spread(tensor)
    return flat.abs().topk(entries.K).indices


class Stepping:
    """Watches the optimizer of a stage.

    Args:
        policy: What it trains.
        updater: It.
        updates: Of the whole stage.
    """

    def __init__(self, policy: Policy, updater: Updater, updates: int) -> None:
        self._policy, self._updater, self._updates = policy, updater, updates
        self.update = 0
        """Updates that should have been counted: taken, skipped or left out."""
        self._names: list[str] = []
        self._trained: list[nn.Parameter] = []
        self._places: list[Tensor] = []
        self._told = torch.zeros(0, dtype=torch.bool)
        self._moments = adamw.Moments.none(0, entries.K)
        self._norm = 0.0
        self._raw = torch.zeros(0)
        self._calls = 0
        self._groups: list[dict[str, Any]] = []
        self._gradient = self._before = self._after = torch.zeros(0)
        self._reaches = torch.zeros(0, dtype=torch.bool)
        self._still: dict[str, tuple[Tensor, Tensor]] = {}
        self._failure: RuntimeError | None = None
        updater.optimizer.register_step_pre_hook(lambda *_: self._undisturbed(self._begin_step))
        updater.optimizer.register_step_post_hook(lambda *_: self._undisturbed(self._end_step))

    def gradient(self) -> None:
        """Note the gradient of an update that is about to be made, as the backward passes left it."""
        if not self._names:
            self._choose()
        grads = [parameter.grad for parameter in self._trained]
        self._raw = entries.read(grads, self._places)
        self._norm = _norm(grads, self._policy.sum_over_ranks)
        self._calls = 0

    def clipped(self, reported: float, bound: float) -> Iterator[Violation]:
        """The gradient has been scaled down to the norm bound, by its own norm, and no further.

        Args:
            reported: The norm that was logged.
            bound: ``max_grad_norm``.
        """
        if not math.isfinite(self._norm) or not math.isfinite(reported):
            return
        coarse = any(p.grad is not None and p.grad.dtype.itemsize < 4 for p in self._trained)
        error = NORMS * (10 if coarse else 1)
        if not close(reported, self._norm, error, 1e-12):
            text = f"the gradient's norm is {self._norm:.6g}, and {reported:.6g} is logged"
            yield Violation("gradient-clip", text, {"norm": self._norm, "logged": reported})
        factor = min(1.0, bound / (self._norm + 1e-6)) if self._norm else 1.0
        wanted = factor * self._raw
        seen = entries.read([p.grad for p in self._trained], self._places)
        slack = error * wanted.abs() + 1e-7 * float(wanted.abs().max()) if wanted.numel() else wanted
        if bool(((seen - wanted).abs() > slack).any()):
            size, before = float(seen.norm()), float(self._raw.norm())
            text = (
                f"a gradient of norm {self._norm:.4g} is to be scaled by {factor:.4g} (max_grad_norm {bound:g}), and "
                f"was scaled by {size / before if before else math.nan:.4g}"
            )
            yield Violation("gradient-clip", text, {"norm": self._norm, "bound": bound, "factor": factor})

    def finish(self, reported: float, factor: float, *, skipped: bool) -> Iterator[Violation]:
        """Judge the update that has been made, or skipped, and count it.

        Args:
            reported: The ``learning_rate`` that was logged.
            factor: By which a guard has lowered it.
            skipped: Whether weights were to stay.
        """
        update, self.update = self.update, self.update + 1
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if skipped or not self._calls:
            if skipped == bool(self._calls):
                what = "was to be skipped, and the optimizer stepped" if skipped else "was made, and none stepped"
                yield Violation("update-count", f"update {update + 1} {what}", {"update": update + 1})
            return
        step = self._seen(update, reported, factor)
        for identity in STEP:
            if (violation := identity(step)) is not None:
                yield violation
        self._advance(step)

    def passed(self, updates: int = 1) -> None:
        """Count updates that are not made."""
        self.update += updates

    def restarted(self) -> None:
        """Forget the moments: the optimizer has been emptied, by intention."""
        self._moments = adamw.Moments.none(len(self._names), entries.K)

    def frozen(self) -> Iterator[Violation]:
        """Weights that are not trained, and the reference, are what they were at the first look."""
        held = dict(self._untrained())
        for name, weight in held.items():
            if name not in self._still:
                places = entries.spread(weight)
                self._still[name] = (places, entries.read([weight], [places]))
        names = [name for name in held if name in self._still]
        if not names:
            return
        now = entries.read([held[name] for name in names], [self._still[name][0] for name in names])
        then = torch.cat([self._still[name][1] for name in names])
        changed = (now != then).any(dim=1).tolist()
        moved = [name for name, is_moved in zip(names, changed, strict=True) if is_moved]
        if moved:
            text = f"{len(moved)} of {len(names)} weights that are not trained have changed: {some(moved)}"
            yield Violation("frozen-weights-moved", text, {"moved": len(moved), "of": len(names)})

    def _untrained(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in self._policy.model.named_parameters():
            if not weight.requires_grad and weight.numel():
                yield name, weight
        for name, weight in self._policy.reference_named():
            yield f"reference.{name}", weight

    def _choose(self) -> None:
        """Settle which entries are watched: of each weight those that the first gradient is largest at."""
        trained = [(name, p) for name, p in self._policy.model.named_parameters() if p.requires_grad and p.numel()]
        self._names, self._trained = [name for name, _ in trained], [parameter for _, parameter in trained]
        self._places = [largest(p if p.grad is None else p.grad) for p in self._trained]
        config = self._updater.config
        matrices = {id(p) for p in self._policy.matrices} if config.kind == "muon" else set()
        self._told = torch.tensor([id(p) not in matrices for p in self._trained])
        self._moments = self._stored(adamw.Moments.none(len(trained), entries.K), torch.ones(len(trained)).bool())

    def _undisturbed(self, look: Callable[[], None]) -> None:
        """Look on from within the optimizer; what goes wrong here is told of later, and breaks no step."""
        try:
            look()
        except RuntimeError as error:
            self._failure = error

    def _begin_step(self) -> None:
        if not self._names:
            self._choose()
        self._calls += 1
        if self._calls > 1:
            return
        self._groups = [dict(group) for group in self._updater.optimizer.param_groups]
        self._reaches = torch.tensor([p.grad is not None for p in self._trained])
        self._gradient = entries.read([p.grad for p in self._trained], self._places)
        self._before = entries.read(self._trained, self._places)
        coarse = torch.tensor([p.dtype not in ROUNDED for p in self._trained])
        if bool(coarse.any()):  # moments that round are followed from step to step
            self._moments = self._stored(self._moments, coarse)

    def _end_step(self) -> None:
        self._after = entries.read(self._trained, self._places)

    def _seen(self, update: int, reported: float, factor: float) -> Step:
        config, parameters = self._updater.config, self._trained
        rate = adamw.scheduled(config, update, self._updates) * factor
        change, _ = adamw.step(self._before, self._gradient, self._moments, rate, config)
        wanted = torch.where(self._reaches[:, None], change, torch.zeros_like(change))
        own = {id(p): name for name, p in self._policy.model.named_parameters() if p.requires_grad}
        held = [id(p) for group in self._updater.optimizer.param_groups for p in group["params"]]
        sizes = torch.tensor([[torch.finfo(p.dtype).eps] for p in parameters], dtype=torch.float64)
        rounded = torch.tensor([[ROUNDED.get(p.dtype, COARSE)] for p in parameters], dtype=torch.float64)
        counts = [_count(self._state(p)) for p in parameters]
        return Step(
            config=config,
            names=self._names,
            uncovered=[name for key, name in own.items() if key not in set(held)],
            foreign=len([key for key in held if key not in own]),
            calls=self._calls,
            update=update,
            done=self._updater.done - 1,
            rate=rate,
            factor=factor,
            groups=self._groups,
            reported=reported,
            reaches=self._reaches,
            told=self._told,
            gradient=self._gradient,
            before=self._before,
            after=self._after,
            moments=self._moments,
            wanted=wanted,
            unit=sizes * torch.maximum(self._before.abs(), self._after.abs()),
            rounded=rounded,
            counts=torch.tensor(counts, dtype=torch.float64),
        )

    def _advance(self, step: Step) -> None:
        _, after = adamw.step(step.before, step.gradient, step.moments, step.rate, step.config)
        reaches = step.reaches[:, None]
        self._moments = adamw.Moments(
            torch.where(reaches, after.first, step.moments.first),
            torch.where(reaches, after.second, step.moments.second),
            torch.where(step.reaches, after.steps, step.moments.steps),
        )

    def _stored(self, moments: adamw.Moments, which: Tensor) -> adamw.Moments:
        """The moments, with those that the optimizer holds in place of some; of n weights, shape (n,)."""
        states = [self._state(p) for p in self._trained]
        has_moments = torch.tensor(["exp_avg" in state for state in states]) & which
        if not bool(has_moments.any()):
            return moments
        first = entries.read([state.get("exp_avg") for state in states], self._places)
        second = entries.read([state.get("exp_avg_sq") for state in states], self._places)
        counts = torch.tensor([_count(state) for state in states], dtype=torch.float64)
        return replace(
            moments,
            first=torch.where(has_moments[:, None], first, moments.first),
            second=torch.where(has_moments[:, None], second, moments.second),
            steps=torch.where(has_moments, counts, moments.steps),
        )

    def _state(self, parameter: nn.Parameter) -> dict[str, Any]:
        return next((dict(part.state[parameter]) for part in self._updater.parts if parameter in part.state), {})


def _count(state: dict[str, Any]) -> float:
    return float(state["step"]) if "step" in state else math.nan


def _norm(grads: Sequence[Tensor | None], total: Callable[[Tensor], None] | None) -> float:
    """Euclidean norm of a gradient over all tensors; ``total`` adds up squares over processes that hold pieces."""
    present = [local(grad).detach() for grad in grads if grad is not None]
    norms = [torch.linalg.vector_norm(grad, dtype=torch.float32) for grad in present]
    norm = torch.stack([norm.to(norms[0].device) for norm in norms]).double().norm() if norms else torch.zeros(())
    if total is None:
        return float(norm)
    square = norm.double().square()
    total(square)
    return float(square.sqrt())
