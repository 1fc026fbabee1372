"""``memory/micro-batch``: the fullest is computed forward and backward on a GPU, and one without room is a failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from levelhead.policy.policy import Policy
from levelhead.preflight.check import Outcome
from levelhead.preflight.checks.machine import MicroBatchFits
from levelhead.preflight.context import Context
from preflight_setup import setup_of


class OnGpu:
    """A policy of the CPU that says it is on a GPU."""

    device = torch.device("cuda")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 1 << 30)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    context = Context(setup_of())
    assert context.turns
    monkeypatch.setattr(context, "policy", OnGpu(context.policy))
    yield context
    context.close()


def outcome(context: Context) -> Outcome:
    (only,) = MicroBatchFits().run(context)
    return only


def test_a_micro_batch_that_fits_passes_and_leaves_no_gradient(context: Context) -> None:
    assert outcome(context).status == "pass"
    assert all(parameter.grad is None for parameter in context.policy.parameters)


@pytest.mark.parametrize(("owner", "name"), [(Policy, "pack"), (Policy, "score"), (torch.Tensor, "backward")], ids=str)
def test_one_that_does_not_fit_is_a_failure(
    owner: Any, name: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("no room for 9 GiB")

    monkeypatch.setattr(owner, name, no_room)
    assert (outcome(context).status, outcome(context).fields["error"]) == ("fail", "no room for 9 GiB")


def test_nothing_is_computed_on_a_cpu() -> None:
    context = Context(setup_of())
    try:
        assert not list(MicroBatchFits().run(context))
    finally:
        context.close()
