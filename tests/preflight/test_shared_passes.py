"""The preflight makes few passes through the model, whatever it checks; they tell a wrong gradient from a long step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from faults.known import inject
from levelhead.preflight import preflight
from levelhead.preflight.context import ROLLOUTS, SAMPLED, Context
from levelhead.preflight.shared_passes import SharedPasses
from levelhead.preflight.trial import FrozenUpdater
from levelhead.recipe.training import Optimizer
from levelhead.rollout.generators.local import LocalGenerator
from levelhead.training.prepare import Setup
from preflight_setup import setup_of

EVERYTHING = ("grpo.kl.coef=0.05", "grpo.entropy.coef=0.01")


def counted(monkeypatch: pytest.MonkeyPatch, setup: Setup) -> Counter[str]:
    """Count tokens that pass through the model outside of sampling, and calls of the sampler."""
    counts: Counter[str] = Counter()
    sample, backward = LocalGenerator.sample, torch.Tensor.backward
    sampling: list[bool] = []

    def note(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if not sampling:
            counts["forward"] += kwargs["input_ids"].numel()
            counts["with gradient"] += kwargs["input_ids"].numel() * output.last_hidden_state.requires_grad

    def sampled(self: Any, *args: Any, **options: Any) -> Any:
        sampling.append(True)
        counts["samplings"] += 1
        try:
            turns = sample(self, *args, **options)
        finally:
            sampling.pop()
        counts["rollouts"] += sum(map(len, turns))
        return turns

    def back(self: Any, *args: Any, **options: Any) -> Any:
        counts["backward"] += 1
        return backward(self, *args, **options)

    setup.policy.base.get_decoder().register_forward_hook(note, with_kwargs=True)
    monkeypatch.setattr(LocalGenerator, "sample", sampled)
    monkeypatch.setattr(torch.Tensor, "backward", back)
    return counts


@pytest.mark.parametrize("way", ["step", "finish"])
def test_a_trial_update_changes_nothing_and_leaves_its_gradient_to_be_read(way: str) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.full((3,), 2.0)
    updater = FrozenUpdater([weight], Optimizer(), 1)
    getattr(updater, way)()
    assert updater.done == 1
    assert torch.equal(weight, torch.ones(3))
    assert torch.equal(weight.grad, torch.full((3,), 2.0))


@pytest.mark.parametrize("settings", [(), EVERYTHING, (*EVERYTHING, "model.lora.r=4"), ("sft=null",)], ids=str)
def test_six_short_forward_passes_and_two_backward_passes_whatever_is_checked(
    settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = setup_of(*settings)
    families = {check.split("/")[0] for check in ("loss/", "signs/", "agreement/", "tokens/", "stops/", "sampling/")}
    counts = counted(monkeypatch, setup)
    report = preflight(setup, families=[*families, "rewards", "throughput"])
    assert not report.failures
    context = Context(setup)
    try:
        whole = sum(len(turn.context_ids) + SAMPLED for turn in context.turns)
    finally:
        context.close()
    assert counts["samplings"] == 2  # one of them is this test's own
    assert counts["rollouts"] == 2 * len(context.rollouts) <= 2 * ROLLOUTS
    # Sampling reads each token once; the other five passes are no longer than the rollouts.
    assert counts["forward"] <= 5 * whole
    assert counts["with gradient"] <= 2 * whole
    tasks, stages = len(setup.tasks), 1 + (setup.recipe.sft is not None)
    assert counts["backward"] <= tasks * stages


def test_a_backward_pass_that_is_not_the_forward_passes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    (sound,) = preflight(setup_of(), families=["signs/descent"]).checks
    assert (sound.status, sound.said.key) == ("pass", "right")

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, values: torch.Tensor) -> torch.Tensor:
            return values.clone()

        @staticmethod
        def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return -3 * grad

    setup = setup_of()
    for layer in setup.policy.base.get_decoder().layers:
        layer.mlp.register_forward_hook(lambda module, args, output: Wrong.apply(output))
    (broken,) = preflight(setup, families=["signs/descent"]).checks
    assert broken.status == "fail", broken.message


def test_a_step_that_is_too_long_is_made_shorter_and_never_called_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SharedPasses._difference
    sizes: list[float] = []

    def curved(self: SharedPasses, trial: Any, moved: Any, size: float) -> float:
        sizes.append(size)
        return real(self, trial, moved, size) * (-1.0 if len(sizes) == 1 else 1.0)

    monkeypatch.setattr(SharedPasses, "_difference", curved)
    (check,) = preflight(setup_of(), families=["signs/descent"]).checks
    assert check.status == "pass"
    assert sizes[1] < sizes[0]
    monkeypatch.setattr(SharedPasses, "_difference", lambda self, trial, moved, size: size**3)
    (check,) = preflight(setup_of(), families=["signs/descent"]).checks
    assert (check.status, check.said.key) == ("pass", "unjudged")


def test_controls_that_move_what_is_sampled_are_reported_unless_the_loss_corrects_for_them() -> None:
    truncated = ("grpo.sampling.presence_penalty=2", "grpo.sampling.frequency_penalty=2")
    (plain,) = preflight(setup_of(), families=["sampling/controls"]).checks
    (warned,) = preflight(setup_of(*truncated), families=["sampling/controls"]).checks
    (corrected,) = preflight(
        setup_of(*truncated, "grpo.loss.importance=token_truncate"), families=["sampling/controls"]
    ).checks
    assert [plain.status, warned.status, corrected.status] == ["pass", "warn", "pass"]


def sharp_in_half_precision() -> Setup:
    setup = setup_of("model.dtype=bfloat16")
    with torch.no_grad():
        setup.policy.base.get_decoder().norm.weight.mul_(40)
    return setup


def test_the_rounding_of_large_logits_in_half_precision_is_no_fault() -> None:
    checks = preflight(sharp_in_half_precision(), families=["agreement/sampler", "agreement/trainer"]).checks
    assert [check.status for check in checks] == ["pass", "pass"], [check.message for check in checks]


def test_another_context_is_a_fault_in_half_precision_too() -> None:
    with inject("logprobs-of-the-raw-prompt"):
        checks = preflight(sharp_in_half_precision(), families=["agreement/trainer"]).checks
    assert [check.status for check in checks] == ["fail"]
