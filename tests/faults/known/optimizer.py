"""Faults of the optimizer: whose weights it moves, how far, and with which gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import levelhead.training.optim
from faults.known.registry import fault, replaced
from levelhead.objective.aggregation import GradientMerger
from levelhead.training.optim import Updater


@fault(
    "optimizer-of-a-copy",
    "the optimizer was made before the model was moved: it trains weights of no model",
    kind="signs",
)
def _optimizer_of_a_copy() -> Iterator[None]:
    def make(real: Any) -> Any:
        def init(self: Updater, parameters: Any, *args: Any, **options: Any) -> None:
            real(self, [torch.nn.Parameter(p.detach().clone()) for p in parameters], *args, **options)

        return init

    with replaced(Updater, "__init__", make):
        yield


@fault("gradients-not-cleared", "gradients are added to those of all steps before", kind="signs")
def _gradients_not_cleared() -> Iterator[None]:
    def make(real: Any) -> Any:
        def finish(self: Any) -> Any:
            merged = real(self)
            whole = getattr(self, "_never_cleared", None)
            for index, parameter in enumerate(self.params):
                if parameter.grad is not None and whole is not None:
                    parameter.grad += whole[index]
            self._never_cleared = [0 if p.grad is None else p.grad.clone() for p in self.params]
            return merged

        return finish

    with replaced(GradientMerger, "finish", make):
        yield


@fault("learning-rate-grows", "the schedule multiplies where it should decay", kind="signs")
def _learning_rate_grows() -> Iterator[None]:
    with replaced(levelhead.training.optim, "schedule", lambda _: lambda recipe, done, steps: 1.4**done):
        yield


@fault("steps-go-uphill", "the optimizer maximises what is to be minimised", kind="signs")
def _steps_go_uphill() -> Iterator[None]:
    def make(real: Any) -> Any:
        def step(self: Updater) -> None:
            for group in self.optimizer.param_groups:
                group["maximize"] = True
            real(self)

        return step

    with replaced(Updater, "step", make):
        yield


@fault(
    "weights-lost-to-overflow",
    "a reduced-precision step overflows: the update makes weights that are no numbers",
    "sft=null",
    kind="signs",
)
def _weights_lost_to_overflow() -> Iterator[None]:
    def make(real: Any) -> Any:
        def step(self: Updater) -> None:
            real(self)
            if self.done % 8 == 0:
                with torch.no_grad():
                    self.parameters[0][1:] = torch.inf

        return step

    with replaced(Updater, "step", make):
        yield
