"""The factory's training is GRPO, its faults are faults, and its fitted doctor starts from the one that ships."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from levelhead.diagnosis.findings import CATALOGUE
from levelhead.doctor.report import examine

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from factorylib import fit, journal, labels, make, paste, table  # noqa: E402
from factorylib.evidence import CONTEXT, Features, Heard, features_of  # noqa: E402
from factorylib.faults import FAULTS  # noqa: E402
from factorylib.plans import Plan, sound_plan  # noqa: E402
from factorylib.simulate import Trainer  # noqa: E402
from factorylib.verdict import Doctor  # noqa: E402
from factorylib.worlds import WORLDS  # noqa: E402

PLAN = Plan("partial", seed=3, steps=60, prompts=8, batch=4, group=8, filler=4)


@pytest.mark.parametrize("loss", ["grpo", "dapo", "dr_grpo"])
def test_the_gradient_is_that_of_the_loss_that_is_logged(loss: str) -> None:
    trainer = Trainer(replace(PLAN, loss=loss, beta=0.3))
    trainer.own += np.random.default_rng(0).normal(0, 0.2, trainer.own.shape)
    batch = trainer.collect(0)
    gradient, _ = trainer.gradient(batch, 0)
    for row, place, token in ((0, 0, 1), (1, 3, 7), (3, 8, 2)):
        slopes = []
        for sign in (1, -1):
            trainer.own[batch.prompts[row], place, token] += sign * 1e-5
            slopes.append(sign * trainer.gradient(batch, 0)[1]["loss"])
            trainer.own[batch.prompts[row], place, token] -= sign * 1e-5
        assert -gradient[row, place, token] == pytest.approx(sum(slopes) / 2e-5, abs=1e-6)


def test_tokens_are_drawn_with_the_probabilities_of_the_policy() -> None:
    trainer = Trainer(replace(PLAN, group=20_000, batch=1))
    probability = np.full((1, 2, 4), 0.25)
    probability[0, 1] = [0.7, 0.2, 0.1, 0.0]
    tokens = trainer._drawn(probability)
    shares = [np.bincount(tokens[0, :, place], minlength=4) / 20_000 for place in range(2)]
    assert shares[0] == pytest.approx([0.25] * 4, abs=0.015)
    assert shares[1] == pytest.approx([0.7, 0.2, 0.1, 0.0], abs=0.015)


def test_a_seed_makes_one_run() -> None:
    once, again = journal.simulate(PLAN), journal.simulate(PLAN)
    assert once.rows == again.rows
    assert once.rows != journal.simulate(replace(PLAN, seed=4)).rows


def test_a_sound_run_learns_and_the_wrong_sign_unlearns() -> None:
    sound, wrong = journal.simulate(PLAN), journal.simulate(replace(PLAN, sign=-1.0))
    assert labels.sound(sound, PLAN)
    assert labels.hurt(wrong, sound, PLAN)
    assert np.mean(sound.true[-10:]) > np.mean(sound.true[:10]) + 0.1 > np.mean(wrong.true[-10:]) + 0.1


def test_there_are_sixty_faults_and_each_changes_a_plan_and_has_a_name_in_the_catalogue() -> None:
    assert len(FAULTS) >= 60
    plan = replace(PLAN, rate=0.05)
    for fault in FAULTS.values():
        assert replace(plan, **fault.change(plan, 0.5)) != plan, fault.name  # type: ignore[arg-type]
        assert fault.expected | fault.acceptable <= set(CATALOGUE), fault.name
        assert fault.root in fault.expected


def test_every_family_makes_a_sound_run() -> None:
    for world in WORLDS:
        plan = replace(sound_plan(world, 5, np.random.default_rng(2)), steps=8)
        rows = journal.simulate(plan).rows
        assert len(rows) == 8
        assert all(math.isfinite(value) for _, row in rows for value in row.values()), world


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[make.Case, Features, Path]]:
    folder = tmp_path_factory.mktemp("factory")
    cases = list(make.make(range(2, 8), 1, folder))
    return [(case, features, folder / case.name) for case, features in make.hear(cases, folder)]


def test_weights_of_one_are_the_doctor_that_ships(heard: list[tuple[make.Case, Features, Path]]) -> None:
    assert len(heard) > 8
    for _, features, path in heard:
        report = examine(path)
        grave = [(f.code, round(f.confidence, 3)) for f in report.diagnosis.findings if f.severity != "info"]
        assert [(code, round(p, 3)) for code, p in Doctor({}).findings(features)] == grave


def test_the_table_keeps_what_was_said(heard: list[tuple[make.Case, Features, Path]], tmp_path: Path) -> None:
    table.save(tmp_path / "t.npz", [(case, features) for case, features, _ in heard])
    for (case, features, _), (other, read) in zip(heard, table.load(tmp_path / "t.npz"), strict=True):
        assert (case.family, case.root, case.right) == (other.family, other.root, other.right)
        assert [h.code for h in features.heard] == [h.code for h in read.heard]
        for before, after in zip(features.heard, read.heard, strict=True):
            assert after.arguments == pytest.approx(dict(before.arguments), abs=0.01)


def _points(weight: float, turned: bool = False) -> list[fit.Point]:
    """A finding that is right where its first argument is strong (or weak), whatever its second says."""
    rng = np.random.default_rng(1)
    context = dict.fromkeys(CONTEXT, 0.0)
    points = []
    for _ in range(400):
        first, second = rng.uniform(0, 3, 2)
        right = (first > 1.5) != turned
        points.append(fit.Point(Heard("kl-blowup", {"a": first, "b": second}, "critical", 1.0), context, right, weight))
    return points


def test_fitted_weights_follow_what_tells_and_never_turn_an_argument_round() -> None:
    model = fit.fit(_points(1.0), 1.0, 1.0)
    assert model.arguments is not None
    assert model.arguments["a"] > 1.5
    assert model.arguments["b"] < 0.3
    turned = fit.fit(_points(1.0, turned=True), 1.0, 1.0)
    assert turned.arguments is not None
    assert turned.arguments["a"] == 0.0


def test_what_the_data_say_nothing_of_stays_as_it_was_set() -> None:
    model = fit.fit(_points(1e-9), 30.0, 30.0)
    assert model.arguments == pytest.approx({"a": 1.0, "b": 1.0}, abs=1e-3)
    assert fit.fit(_points(1.0)[:10], 1.0, 1.0) is fit.HAND


def test_a_scale_is_found_again_and_held_near_one_without_data() -> None:
    rng = np.random.default_rng(0)
    odds = rng.normal(0, 2, 4000)
    right = rng.random(4000) < 1 / (1 + np.exp(-(0.5 * odds - 1)))
    slope, shift = fit.platt([(float(x), float(y), 1.0) for x, y in zip(odds, right, strict=True)])
    assert (slope, shift) == pytest.approx((0.5, -1.0), abs=0.12)
    assert fit.platt([(1.0, 1.0, 1e-6)]) == pytest.approx((1.0, 0.0), abs=1e-3)


def test_every_form_reads_back(tmp_path: Path) -> None:
    rows = journal.simulate(replace(PLAN, steps=12)).rows
    for form, (suffix, write, carries) in paste.ALL_FORMS.items():
        shown: list[tuple[float, dict[str, Any]]] = [
            (step, {k: v for k, v in row.items() if carries is None or k in carries}) for step, row in rows
        ]
        path = tmp_path / f"log.{suffix}"
        path.write_text(write(shown), encoding="utf-8")
        assert features_of(path).context["no-reward"] == 0.0, form
