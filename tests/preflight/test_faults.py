"""Every known bug is caught by the check that is meant for it, and nothing is caught where there is none."""

from __future__ import annotations

import pytest
import torch

from faults.known import FAULTS, inject
from levelhead.preflight import preflight
from oracle.run import preflight as prove
from preflight_setup import CAUGHT_BY, PROVED_BY, setup_of


@pytest.mark.parametrize("name", CAUGHT_BY)
def test_fault_is_caught(name: str) -> None:
    check = CAUGHT_BY[name]
    with inject(name):
        report = preflight(setup_of(*FAULTS[name].settings), families=[check.split("/")[0]])
    assert check in [failure.name for failure in report.failures], {
        c.name: (c.status, c.message) for c in report.checks
    }


@pytest.mark.parametrize("name", PROVED_BY)
def test_fault_of_our_own_is_caught_by_its_proof(name: str) -> None:
    proof = PROVED_BY[name]
    with inject(name):
        report = prove(setup_of(*FAULTS[name].settings), families=[proof.split("/")[0]])
    assert proof in [failure.name for failure in report.failures]


@pytest.mark.parametrize("settings", sorted({FAULTS[name].settings for name in CAUGHT_BY}))
def test_clean_run_passes_with_the_same_settings(settings: tuple[str, ...]) -> None:
    report = preflight(setup_of(*settings))
    assert not report.failures, report.failures


def test_every_fault_of_tokens_has_its_check() -> None:
    assert {name for name, fault in FAULTS.items() if fault.kind == "tokens"} <= set(CAUGHT_BY) | set(PROVED_BY)


def test_faults_are_gone_once_left() -> None:
    with inject("labels-off-by-one"):
        pass
    assert not preflight(setup_of(), families=["agreement"]).failures


def test_preflight_leaves_weights_gradients_and_random_numbers_alone() -> None:
    setup = setup_of("grpo.kl.coef=0.05", "grpo.entropy.coef=0.01")
    before = {name: p.detach().clone() for name, p in setup.policy.model.named_parameters()}
    state = torch.get_rng_state()
    preflight(setup)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, before[n]) and p.grad is None for n, p in setup.policy.model.named_parameters())
    assert not setup.policy.keeps_reference
    assert not setup.policy.model.training
