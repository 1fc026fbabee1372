"""Numbers of one update that fit each other pass, and those that do not are told of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from levelhead.policy.rounding import Tolerance
from levelhead.recipe import Recipe, validate
from levelhead.records import CoefficientOverrides
from oracle.update_numbers import UPDATE, Numbers
from small_run import recipe

AUDIT = {"policy/one": 0.5, "policy/two": 0.5, "kl/one": 0.025, "kl/two": 0.025, "entropy/one": 5e-3}
"""Coefficients that the recipe gives, without clipping."""


@pytest.fixture
def made(tmp_path: Path) -> Recipe:
    return validate(recipe(tmp_path))


def numbers(made: Recipe, **values: float) -> Numbers:
    assert made.grpo is not None
    audit = {f"audit/{label}/coef": coef for label, coef in AUDIT.items()}
    audit |= {f"audit/{label}/coef_error": 1e-6 for label in AUDIT}
    shown = {
        "kl/one": 1e-7, "kl/two": -2e-6, "entropy_coef": 0.01, "grad_norm": 0.3,
        "ratio/mean": 1.05, "ratio/max": 1.9, "ratio/bounded_mean": 0.0,
        "clip_ratio/low_mean": 0.02, "clip_ratio/high_mean": 0.03, "clip_ratio/region_mean": 0.05,
    }  # fmt: skip
    return Numbers(
        recipe=made,
        grpo=made.grpo,
        values={**shown, **audit, **values},
        overrides=CoefficientOverrides(),
        first=True,
        at_old_policy=False,
        present=("one", "two"),
        tolerance=Tolerance(2e-4, 2e-3),
        gaps={"one": 1e-6, "two": 0.0},
        kl_coefs={"one": 0.05, "two": 0.05},
        strengths=dict.fromkeys(AUDIT, 0.4),
    )


def codes(numbers: Numbers) -> set[str]:
    return {violation.code for identity in UPDATE for violation in identity(numbers)}


def test_numbers_that_fit_are_left_alone(made: Recipe) -> None:
    assert codes(numbers(made)) == set()
    quiet = {"ratio/mean": 1.0, "ratio/max": 1.0, "clip_ratio/low_mean": 0.0, "clip_ratio/high_mean": 0.0}
    assert codes(replace(numbers(made, **quiet, **{"clip_ratio/region_mean": 0.0}), at_old_policy=True)) == set()


def test_later_updates_are_away_from_the_reference(made: Recipe) -> None:
    assert codes(replace(numbers(made, **{"kl/one": 0.4}), first=False)) == set()


def test_a_guard_turns_coefficients_and_that_is_known(made: Recipe) -> None:
    turned = replace(
        numbers(made, entropy_coef=0.021), overrides=CoefficientOverrides(entropy=2.0, entropy_bonus=0.001, kl=2.0)
    )
    turned = replace(turned, kl_coefs={"one": 0.1, "two": 0.1}, strengths={})
    assert codes(turned) == set()


def test_clipping_and_merging_scale_what_is_audited(made: Recipe) -> None:
    coefs = {"audit/policy/one/coef": 0.3, "audit/policy/two/coef": 0.2}
    others = {f"audit/{label}/coef": AUDIT[label] / 5 for label in AUDIT if not label.startswith("policy")}
    scaled = replace(numbers(made, **coefs, **others), clip_factor=0.2, merged={"one": 3.0, "two": 2.0})
    assert codes(scaled) == set()


def test_a_term_in_the_dust_and_one_of_large_error_are_not_judged(made: Recipe) -> None:
    off = numbers(made, **{"audit/kl/one/coef": 9.0})
    assert codes(replace(off, strengths=dict.fromkeys(AUDIT, 1e-6))) == set()
    assert codes(numbers(made, **{"audit/kl/one/coef": 9.0, "audit/kl/one/coef_error": 3.0})) == set()


MUTANTS: list[tuple[str, dict[str, float], dict[str, Any]]] = [
    ("kl-at-start", {"kl/one": 0.01}, {}),
    ("kl-at-start", {"kl/two": -0.002}, {}),
    ("kl-at-start", {}, {"gaps": {"one": 0.0, "two": 0.03}}),
    ("coefficient", {"entropy_coef": 0.02}, {}),
    ("coefficient", {"entropy_coef": 0.0}, {}),
    ("coefficient", {}, {"kl_coefs": {"one": 0.05, "two": 0.1}}),
    ("coefficient", {}, {"overrides": CoefficientOverrides(kl=2.0)}),
    ("audited-coefficient", {"audit/policy/one/coef": 1.0}, {}),
    ("audited-coefficient", {"audit/kl/two/coef": 0.0}, {}),
    ("audited-coefficient", {"audit/entropy/one/coef": -0.005}, {}),
    ("audited-coefficient", {}, {"clip_factor": 0.5}),
    (
        "clip-share",
        {"clip_ratio/high_mean": 0.6, "clip_ratio/region_mean": 0.62},
        {"overrides": CoefficientOverrides(clip=4.0)},
    ),
    ("clip-share", {"ratio/max": 1.1}, {}),
    ("clip-share", {"clip_ratio/region_mean": 0.03}, {}),
    ("clip-share", {"ratio/mean": 2.5}, {}),
    ("clip-share", {"clip_ratio/low_mean": 0.9, "clip_ratio/region_mean": 0.93}, {}),
    ("clip-share", {}, {"at_old_policy": True}),
]


@pytest.mark.parametrize(("code", "values", "changes"), MUTANTS)
def test_numbers_that_do_not_fit_are_told_of(
    code: str, values: dict[str, float], changes: dict[str, Any], made: Recipe
) -> None:
    assert code in codes(replace(numbers(made, **values), **changes))


def test_every_identity_is_broken_in_three_ways() -> None:
    codes = [code for code, _, _ in MUTANTS]
    assert {code for code in codes if codes.count(code) < 3} == set()
