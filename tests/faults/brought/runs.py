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
