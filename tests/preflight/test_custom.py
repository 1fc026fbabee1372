"""A loss or estimator of the user's own that points the wrong way is stopped, and any built-in one passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from levelhead.objective.losses import LOSSES
from levelhead.objective.losses.ppo import PpoClip, Surrogate
from levelhead.preflight.checks.custom_gradient import CustomGradient
from levelhead.preflight.context import Context
from levelhead.training.advantages import AdvantageEstimator
from preflight_setup import setup_of


class Negated(PpoClip):
    """Returns a loss where a surrogate is wanted."""

    def surrogate(self, inputs: Any) -> Surrogate:
        made = super().surrogate(inputs)
        return Surrogate(-made.value_nt, made.stats)


class Detached(PpoClip):
    """Leads back to no log-probability."""

    def surrogate(self, inputs: Any) -> Surrogate:
        made = super().surrogate(inputs)
        return Surrogate(made.value_nt.detach(), made.stats)


@pytest.mark.parametrize("loss", [Negated(), Detached()])
def test_a_loss_that_points_the_wrong_way_fails(loss: Any) -> None:
    assert CustomGradient()._loss(loss).status == "fail"


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("clip_cov", "kl_cov")])
def test_built_in_losses_pass(name: str) -> None:
    outcome = CustomGradient()._loss(LOSSES[name]())
    assert outcome.status == "pass"
    if name == "ppo_clip":
        assert outcome.fields["same"] == outcome.fields["count"]
    if name == "cispo":
        assert outcome.said.key == "detached"


def test_an_estimator_upside_down_fails_and_built_in_ones_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def verdict(kind: str) -> str:
        context = Context(setup_of(f"grpo.advantage.kind={kind}"))
        try:
            return CustomGradient()._estimator(context).status
        finally:
            context.close()

    assert {verdict(kind) for kind in ("grpo", "rloo", "dr_grpo")} == {"pass"}
    real = AdvantageEstimator.assign

    def negated(self: AdvantageEstimator, *args: Any) -> Any:
        groups, measured = real(self, *args)
        return [replace(group, values=[-value for value in group.values]) for group in groups], measured

    monkeypatch.setattr(AdvantageEstimator, "assign", negated)
    assert verdict("grpo") == "fail"
