"""A stage that is taken up again goes on with its prompts, and what breaks that is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from levelhead.recipe import validate
from levelhead.training.prepare import prepare
from levelhead.training.stream import PromptStream
from oracle.run import preflight
from small_run import recipe


def statuses(folder: Path, **changes: Any) -> dict[str, str]:
    report = preflight(prepare(validate(recipe(folder, **changes))), families=["identities"])
    return {check.name: check.status for check in report.checks}


def test_a_sound_recipe_passes_and_weights_stay(tmp_path: Path) -> None:
    setup = prepare(validate(recipe(tmp_path, model__lora={"r": 2}, grpo__optimizer__weight_decay=0.1)))
    before = [p.detach().clone() for p in setup.policy.model.parameters()]
    report = preflight(setup, families=["identities"])
    assert {check.status for check in report.checks} == {"pass"}
    assert len(report.checks) == 2
    after = list(setup.policy.model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(p.grad is None for p in after)


def from_the_beginning(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PromptStream, "load_state_dict", lambda self, state: None)


def one_prompt_lost(patch: pytest.MonkeyPatch) -> None:
    real = PromptStream.load_state_dict

    def load_state_dict(self: PromptStream, state: Any) -> None:
        real(self, state)
        self.take(1)

    patch.setattr(PromptStream, "load_state_dict", load_state_dict)


def never_moved(patch: pytest.MonkeyPatch) -> None:
    real, first = PromptStream.state_dict, []

    def state_dict(self: PromptStream) -> Any:
        first.append(real(self))
        return first[0]

    fresh = PromptStream.__init__

    def begin(self: PromptStream, *args: Any, **named: Any) -> None:
        fresh(self, *args, **named)
        first.clear()
        state_dict(self)

    patch.setattr(PromptStream, "__init__", begin)
    patch.setattr(PromptStream, "state_dict", state_dict)


BROKEN: tuple[tuple[str, Callable[[pytest.MonkeyPatch], None]], ...] = (
    ("identities/resume/grpo", from_the_beginning),
    ("identities/resume/grpo", one_prompt_lost),
    ("identities/resume/grpo", never_moved),
)


@pytest.mark.parametrize(("name", "fault"), BROKEN)
def test_what_is_broken_fails_by_name(
    name: str, fault: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    assert statuses(tmp_path)[name] == "fail"
