"""AdamW, its schedule, and the one place where weights change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from levelhead.recipe.training import Optimizer
from levelhead.records import Event

NONFINITE = "nonfinite"
"""Code of the event of an update without a finite gradient."""

_FUSED_ON = {"cpu", "cuda"}
"""Devices where the update is one pass over the weights; it takes a sixth of the time on a CPU."""


class Updater:
    """Clips the gradient, sets the learning rate of the step, and steps; never with a gradient that is not finite.

    Args:
        parameters: What is trained.
        recipe: The stage's ``optimizer``.
        steps: Optimizer steps of the whole stage.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], recipe: Optimizer, steps: int) -> None:
        self.parameters = list(parameters)
        self.recipe = recipe
        self.steps = steps
        self.done = 0
        self.factor = 1.0
        """Of the scheduled learning rate; a guard may lower it."""
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=recipe.learning_rate,
            betas=recipe.betas,
            eps=recipe.eps,
            weight_decay=recipe.weight_decay,
            fused=all(parameter.device.type in _FUSED_ON for parameter in self.parameters),
        )

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return self.recipe.learning_rate * schedule(self.recipe, self.done, self.steps) * self.factor

    def clip(self) -> float:
        """Scale the gradient down to the norm bound and set the learning rate; returns the norm before."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.max_grad_norm)
        return float(norm)

    def step(self) -> None:
        """Change the weights."""
        self.optimizer.step()
        self.clear()

    def clear(self) -> None:
        """Count the step and drop its gradient, whether or not the weights were changed."""
        self.optimizer.zero_grad(set_to_none=True)
        self.done += 1

    def leave_out(self, steps: int) -> None:
        """Count steps that are not taken: the schedule goes with the batches."""
        self.done += steps


def lost_gradient(step: int, values: Mapping[str, float]) -> Event:
    """The event of an update that was skipped because its gradient is not finite."""
    evidence = {name: str(values[name]) for name in ("grad_norm", "loss") if name in values}
    return Event(step, NONFINITE, "warning", "the gradient is not finite; the update was skipped", "skip", evidence)


def schedule(recipe: Optimizer, done: int, steps: int) -> float:
    """Fraction of the peak learning rate after ``done`` of ``steps`` steps.

    Linear from ``1 / warmup_steps`` to 1 over the warm-up, then constant, linear, or half a cosine down to
    ``final_fraction`` at the last step.
    """
    if done < recipe.warmup_steps:
        return (done + 1) / recipe.warmup_steps
    if recipe.schedule == "constant":
        return 1.0
    progress = min(1.0, (done - recipe.warmup_steps) / max(1, steps - 1 - recipe.warmup_steps))
    rest = 1 - progress if recipe.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return recipe.final_fraction + (1 - recipe.final_fraction) * rest
