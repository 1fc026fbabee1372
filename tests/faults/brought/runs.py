"""What a run evaluates and saves otherwise than it is asked to: changes of the code behind it, put back afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from levelhead.policy.policy import Policy
from levelhead.rollout.logits import LogitsPipeline
from levelhead.training import evaluate, evaluator, run


@contextlib.contextmanager
def sampled_at_one() -> Iterator[None]:
    """An engine that takes temperature 0 for its own default, 1."""
    real = LogitsPipeline.__init__

    def init(self: Any, controls: Any, *rest: Any, **more: Any) -> None:
        warm = controls.model_copy(update={"temperature": 1.0}) if controls.temperature == 0 else controls
        real(self, warm, *rest, **more)

    with mock.patch.object(LogitsPipeline, "__init__", init):
        yield


@contextlib.contextmanager
def saved_in_bfloat16() -> Iterator[None]:
    """Weights are rounded on their way to the disk."""
    real = Policy.save

    def save(self: Policy, folder: Path) -> None:
        kept = {name: value.clone() for name, value in self.model.state_dict().items()}
        with torch.no_grad():
            for value in self.model.state_dict().values():
                if value.is_floating_point():
                    value.copy_(value.to(torch.bfloat16).to(value.dtype))
        real(self, folder)
        self.model.load_state_dict(kept)

    with mock.patch.object(Policy, "save", save):
        yield


@contextlib.contextmanager
def answered_at_two() -> Iterator[None]:
    """An evaluation that is asked for at temperature 1 samples at 2."""
    real = evaluate.evaluate

    def warm(tasks: Any, collector: Any, config: Any, *rest: Any) -> Any:
        return real(tasks, collector, config.model_copy(update={"sampling": _at(config.sampling, 2.0)}), *rest)

    with mock.patch.object(evaluator, "evaluate", warm):
        yield


def _at(controls: Any, temperature: float) -> Any:
    return controls.model_copy(update={"temperature": temperature})


@contextlib.contextmanager
def one_layer_left_out() -> Iterator[None]:
    """The file holds what one layer was made with."""
    real = Policy.save
    first: dict[str, torch.Tensor] = {}

    def save(self: Policy, folder: Path) -> None:
        name, weight = next((n, p) for n, p in self.model.named_parameters() if "down_proj" in n)
        now = weight.detach().clone()
        first.setdefault(name, now)
        with torch.no_grad():
            weight.copy_(first[name] * 0.5)
        real(self, folder)
        with torch.no_grad():
            weight.copy_(now)

    with mock.patch.object(Policy, "save", save):
        yield


@contextlib.contextmanager
def cast_by_the_sampler() -> Iterator[None]:
    """Each sync takes the weights through bfloat16 and back."""
    real = Policy.sync_sampler

    def sync(self: Policy) -> None:
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.copy_(weight.to(torch.bfloat16).to(weight.dtype))
        real(self)

    with mock.patch.object(Policy, "sync_sampler", sync):
        yield


@contextlib.contextmanager
def halved_by_a_reward() -> Iterator[None]:
    """What is read of the first steps scales one weight, as code of a user's own may."""
    real = run.note_first_steps

    def note(folder: Any, policy: Policy, *rest: Any) -> None:
        with torch.no_grad():
            next(policy.model.parameters()).mul_(0.999)
        real(folder, policy, *rest)

    with mock.patch.object(run, "note_first_steps", note):
        yield
