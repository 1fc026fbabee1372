"""A kind of question that is given up while the mean rises: named while it happens, and in no sound run."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from levelhead.diagnosis.detectors.outcome import FallingStratum
from levelhead.diagnosis.findings import wording
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Finding, diagnose
from levelhead.guard import LiveGuard
from levelhead.recipe.guard import Guard as Bounds
from levelhead.records import StepRecord

Level = Callable[[int], float]
CODE = "stratum-falls"
EVEN_SPREAD = 2.0
"""Concentration of prompts about a stratum's level: with 2 most prompts lie near 0 or 1, as in real batches."""


def flat(level: float) -> Level:
    return lambda _: level


def line(first: float, last: float, steps: int) -> Level:
    return lambda step: first + (last - first) * min(step / steps, 1.0)


def shares(rng: random.Random, right: float, common: float, groups: int) -> tuple[float, float]:
    """Shares of right and of common answers among eight rollouts a prompt; prompts differ in how hard they are."""
    counts = [0, 0]
    for _ in range(groups):
        levels = (right, common, max(1 - right - common, 1e-3))
        weights = [rng.gammavariate(max(EVEN_SPREAD * level, 1e-3), 1.0) for level in levels]
        for kind in rng.choices(range(3), weights=[w + 1e-12 for w in weights], k=8):
            if kind < 2:
                counts[kind] += 1
    return counts[0] / (8 * groups), counts[1] / (8 * groups)


def rows(seed: int, steps: int, settled: tuple[Level, Level], open_: Level, groups: int = 16) -> list[dict[str, float]]:
    """Abstaining is right on open questions (+0.9), costs 0.3 on settled ones, and a wrong answer costs 1."""
    rng, result = random.Random(seed), []
    for step in range(steps):
        right, common = shares(rng, settled[0](step), settled[1](step), groups)
        known, _ = shares(rng, open_(step), 0.0, groups)
        paid = {"disambig": 0.9 * right - 0.3 * common - (1 - right - common), "ambig": 1.9 * known - 1}
        values = {"reward": sum(paid.values()) / 2, "reward/bbq": sum(paid.values()) / 2, "reward_std": 0.5}
        for name, success, wrong in (("disambig", right, common), ("ambig", known, 0.0)):
            values |= {f"strata/success/bbq/{name}": success, f"strata/common/bbq/{name}": wrong}
            values[f"strata/reward/bbq/{name}"] = paid[name]
        result.append(values)
    return result


def seen(data: list[dict[str, float]]) -> Finding | None:
    history = History()
    for step, values in enumerate(data, 1):
        history.append(step, values)
    found = diagnose(history, [FallingStratum()]).findings
    return next((finding for finding in found if finding.code == CODE and finding.severity != "info"), None)


GIVEN_UP = (line(0.12, 0.015, 18), line(0.62, 0.95, 18))
"""Settled questions of a policy that learns to abstain: right ones, and abstaining."""


def test_settled_questions_that_are_given_up_are_named_with_their_numbers() -> None:
    finding = seen(rows(0, 20, GIVEN_UP, line(0.7, 0.9, 18)))
    assert finding is not None
    (argument,) = finding.evidence
    assert argument.key == "common-answer-gains"
    words = wording(CODE, argument.key, argument.numbers)
    assert words.startswith("bbq, disambig: the most common answer, wrong there, goes from 6")


def test_a_reward_that_falls_in_one_stratum_is_named_where_no_answer_stands_out() -> None:
    data = rows(0, 20, (line(0.7, 0.2, 18), flat(0.0)), line(0.2, 0.95, 18))
    for values in data:
        values["strata/common/bbq/disambig"] = values["strata/success/bbq/disambig"]  # neither gains on the other
    finding = seen(data)
    assert finding is not None
    assert finding.evidence[0].key == "stratum-earns-less"


@pytest.mark.parametrize("seed", range(6))
def test_the_guard_says_so_once_within_twenty_steps(seed: int) -> None:
    guard = LiveGuard(Bounds())
    events = [
        (step, decision.event)
        for step, values in enumerate(rows(seed, 40, GIVEN_UP, line(0.7, 0.9, 18)), 1)
        for decision in guard.after_update(StepRecord(step, "grpo", values))
        if decision.event.code == CODE and decision.event.severity != "info"
    ]
    ((step, event),) = events
    assert step <= 20
    assert event.severity == "warning"
    assert "bbq, disambig" in event.message


SOUND = {
    "both are learnt": ((line(0.3, 0.8, 60), line(0.4, 0.1, 60)), line(0.7, 0.9, 60)),
    "one is learnt, the other stands": ((flat(0.4), flat(0.3)), line(0.5, 0.95, 60)),
    "one is learnt, the other is hopeless": ((flat(0.05), flat(0.6)), line(0.5, 0.95, 60)),
    "slow": ((line(0.4, 0.5, 120), line(0.4, 0.3, 120)), line(0.6, 0.8, 120)),
    "the form is learnt with the answers": ((line(0.05, 0.4, 30), line(0.1, 0.3, 30)), line(0.05, 0.6, 30)),
}


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("groups", [4, 16])
def test_no_sound_run_is_told_that_a_stratum_falls(name: str, groups: int) -> None:
    for seed in range(4):
        guard = LiveGuard(Bounds())
        data = rows(100 + seed, 90, *SOUND[name], groups)
        events = [
            decision.event.code
            for step, values in enumerate(data, 1)
            for decision in guard.after_update(StepRecord(step, "grpo", values))
        ]
        assert CODE not in events, seed


def test_a_mean_that_does_not_rise_is_another_finding() -> None:
    assert seen(rows(0, 20, GIVEN_UP, line(0.9, 0.6, 18))) is None


def test_few_steps_say_nothing() -> None:
    assert seen(rows(0, 7, (line(0.5, 0.0, 6), line(0.0, 0.95, 6)), line(0.2, 0.95, 6))) is None
