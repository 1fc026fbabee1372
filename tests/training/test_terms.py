"""The terms of a micro-batch depend on its scores, samples and coefficients, and reading them is left to others."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from device_reads import Reads
from levelhead.policy.packing import TokenSequence
from levelhead.recipe.training import Grpo
from levelhead.training.batch import Sample
from levelhead.training.plan import Plan, Share
from levelhead.training.terms import TermBatch, TermConfig, build_terms, make_term_batch

LENGTHS = (3, 5, 4)


def grpo(**changes: Any) -> Grpo:
    return Grpo.model_validate({"group_size": 3, "batch_size": 3, **changes})


def samples() -> list[Sample]:
    logps = [tuple(-0.5 - 0.1 * t - 0.05 * k for t in range(n)) for k, n in enumerate(LENGTHS)]
    return [
        Sample(TokenSequence((1, 2), (3,) * n), "one", k - 1.0, logps[k], 1.0, True, False, logps[k])
        for k, n in enumerate(LENGTHS)
    ]


def scores() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    logp_nt = -torch.rand(3, max(LENGTHS), generator=generator)
    entropy_nt = torch.rand(3, max(LENGTHS), generator=generator)
    return logp_nt.requires_grad_(), entropy_nt.requires_grad_(), logp_nt.detach() - 0.2


def mask() -> torch.Tensor:
    return (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).float()


def batch(config: Grpo, rows: list[Sample] | None = None) -> TermBatch:
    plan = Plan({}, {}, 1.0, at_old_policy=False, generator=torch.Generator())
    return make_term_batch(rows or samples(), mask(), *scores(), plan, config)


def config(section: Grpo, **changes: float) -> TermConfig:
    made = TermConfig(section, section.loss.make(), Share(1.0, float(sum(LENGTHS)), float(sum(LENGTHS))), 0.1, 0.01)
    return replace(made, **changes)


def test_terms_are_a_function_of_their_arguments() -> None:
    section = grpo(loss={"importance": "token_truncate"})
    rows, setting = batch(section), config(section)
    first, again = build_terms(rows, setting), build_terms(rows, setting)
    assert [float(t.value.detach()) for t in first[0]] == [float(t.value.detach()) for t in again[0]]
    assert [(s.name, float(s.value)) for s in first[1]] == [(s.name, float(s.value)) for s in again[1]]


def test_a_coefficient_changes_the_weight_of_its_term_alone() -> None:
    section = grpo()
    terms = {t.name: t for t in build_terms(batch(section), config(section))[0]}
    twice = {t.name: t for t in build_terms(batch(section), config(section, kl_coef=0.2))[0]}
    assert [t.sense for t in terms.values()] == ["maximize", "minimize", "maximize"]
    assert twice["kl"].weight == 2 * terms["kl"].weight
    assert all(float(twice[name].value.detach()) == float(terms[name].value.detach()) for name in terms)
    assert twice["policy"].weight == terms["policy"].weight


@pytest.mark.parametrize("kind", ["reinforce", "ppo_clip", "cispo"])
def test_no_scalar_is_read_from_the_device(kind: str) -> None:
    section = grpo(loss={"kind": kind, "importance": None if kind == "reinforce" else "token_truncate"})
    rows, setting = batch(section), config(section)
    with Reads() as reads:
        build_terms(rows, setting)
    assert reads.count == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [({"advantage": math.nan}, "an advantage"), ({"logprobs": (math.inf, 0.0, 0.0)}, "an old log-probability")],
)
def test_samples_that_are_not_finite_are_refused_before_any_pass(change: dict[str, Any], message: str) -> None:
    first, *others = samples()
    with pytest.raises(ValueError, match=message):
        batch(grpo(), [replace(first, **change), *others])


def test_without_signal_there_is_no_surrogate_and_the_entropy_stays() -> None:
    section = grpo()
    rows = [replace(s, has_signal=False, advantage=0.0) for s in samples()]
    terms, _ = build_terms(batch(section, rows), config(section))
    assert [t.name for t in terms] == ["kl", "entropy"]
