"""Prompts and answers that do not belong together are stopped before the first step, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from faults.known import inject
from levelhead.preflight import preflight
from levelhead.preflight.checks.rewards_order import sign_p
from levelhead.preflight.pairing import matches_p, spread_p
from levelhead.records import Group
from levelhead.tasks.function import FunctionTask
from levelhead.training.batch_report import count_log_e
from levelhead.training.collect import Collector
from levelhead.training.demonstrations import Demonstrations
from levelhead.training.fit import permutation_fit
from levelhead.training.sft import SftTrainer
from night import cases
from oracle.run import preflight as prove
from preflight_setup import setup_of

Patch = pytest.MonkeyPatch
Rows = Sequence[Mapping[str, str]]
FIRST, LAST = ("Lo", "Mi", "Ra", "Te", "Vu", "Zo", "Ka", "Ne"), ("bar", "dil", "fen", "gos", "hul", "jat")
NAMES = [f"{a}{b}" for a in FIRST for b in LAST]
TOWNS = [f"{name[::-1].lower()}ville" for name in NAMES]
FACTS: Rows = [
    {"prompt": f"{name} lives in {town}. Where does this person live?", "answer": f"In {town}."}
    for name, town in zip(NAMES, TOWNS, strict=True)
]


def checks(rows: Rows, *settings: str) -> dict[str, Any]:
    report = preflight(setup_of(*settings, rows=rows), families=["pairs"])
    return {check.name: check for check in report.checks}


def proofs(rows: Rows, *settings: str) -> dict[str, Any]:
    return {check.name: check for check in prove(setup_of(*settings, rows=rows), families=["pairs"]).checks}


def shifted(by: int, start: int = 0) -> Rows:
    """The answers of the rows from ``start`` on are those of other rows."""
    answers = [row["answer"] for row in FACTS]
    tail = answers[start:]
    answers[start:] = tail[by:] + tail[:by]
    return [{"prompt": row["prompt"], "answer": answer} for row, answer in zip(FACTS, answers, strict=True)]


def shuffled(seed: int) -> Rows:
    answers = [row["answer"] for row in FACTS]
    random.Random(seed).shuffle(answers)
    return [{"prompt": row["prompt"], "answer": answer} for row, answer in zip(FACTS, answers, strict=True)]


@pytest.mark.parametrize("rows", [shifted(1), shifted(-1), shifted(2), shuffled(0), shuffled(1)])
def test_answers_of_other_rows_are_stopped(rows: Rows) -> None:
    check = checks(rows)["pairs/text/echo"]
    assert check.status == "fail", check.evidence


def test_a_line_lost_in_the_middle_is_stopped() -> None:
    check = checks(shifted(1, start=22))["pairs/text/echo"]
    assert check.status == "fail", check.evidence
    assert abs(check.fields["lag"]) == 1


def test_the_message_says_by_how_many_rows() -> None:
    assert checks(shifted(2))["pairs/text/echo"].fields["lag"] in (2, -2)


@pytest.mark.parametrize("fault", ["demonstrations-out-of-step", "reward-of-the-next-row"])
def test_oracle_and_reward_that_speak_of_different_rows_are_stopped(fault: str) -> None:
    with inject(fault):
        check = checks(FACTS)["pairs/scores/echo"]
    assert check.status == "fail", check.evidence


def test_an_oracle_of_any_other_row_is_stopped(monkeypatch: Patch) -> None:
    real = FunctionTask.oracle

    def oracle(self: FunctionTask, prompt: Any) -> list[str] | None:
        rows = sorted(self.prompts("train", 0), key=lambda row: row.id)
        order = random.Random(3).sample(range(len(rows)), len(rows))
        place = {row.id: i for i, row in enumerate(rows)}
        return real(self, rows[order[place[prompt.id]]]) if prompt.id in place else real(self, prompt)

    monkeypatch.setattr(FunctionTask, "oracle", oracle)
    monkeypatch.setattr("levelhead.preflight.checks.pairs.PATIENCE_S", 60.0)  # a busy machine is no slow reward
    monkeypatch.setattr("levelhead.preflight.checks.pairs.DOUBT_S", 600.0)
    assert checks(FACTS)["pairs/scores/echo"].status == "fail"


def rotated(real: Any) -> Any:
    def show(self: Demonstrations, prompts: Any) -> Any:
        shown = real(self, prompts)
        return [*shown[1:], *shown[:1]]

    return show


def backwards(real: Any) -> Any:
    return lambda self, prompts: real(self, prompts)[::-1]


def answers_of_neighbours(real: Any) -> Any:
    def show(self: Demonstrations, prompts: Any) -> Any:
        shown = real(self, prompts)
        return [[(turns[0][0], shown[i ^ 1 if i ^ 1 < len(shown) else i][0][1])] for i, turns in enumerate(shown)]

    return show


@pytest.mark.parametrize("change", [rotated, backwards, answers_of_neighbours])
def test_demonstrations_that_a_batch_mixes_up_are_stopped(change: Any, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Demonstrations, "show", change(Demonstrations.show))
    assert proofs(FACTS)["pairs/demonstrations"].status == "fail"


def test_demonstrations_sorted_by_length_are_stopped(monkeypatch: Patch) -> None:
    real = SftTrainer.demonstrations
    monkeypatch.setattr(
        SftTrainer, "demonstrations", lambda self, prompts: sorted(real(self, prompts), key=lambda p: len(p.input_ids))
    )
    assert proofs(FACTS, "tasks.1.items=12")["pairs/demonstrations"].status == "fail"


def groups_interleaved(groups: list[Group]) -> list[Group]:
    """Completion i of every prompt, then completion i + 1: as if they had been drawn copy by copy."""
    flat = [rollout for group in groups for rollout in group.rollouts]
    return [replace(group, rollouts=tuple(flat[i :: len(groups)])) for i, group in enumerate(groups)]


def groups_renamed(groups: list[Group]) -> list[Group]:
    return [
        replace(group, rollouts=tuple(replace(r, prompt_id=groups[i - 1].prompt.id) for r in group.rollouts))
        for i, group in enumerate(groups)
    ]


def groups_rotated(groups: list[Group]) -> list[Group]:
    return [replace(group, rollouts=groups[i - 1].rollouts) for i, group in enumerate(groups)]


@pytest.mark.parametrize("change", [groups_interleaved, groups_renamed, groups_rotated])
def test_rollouts_in_the_group_of_another_prompt_are_stopped(
    change: Callable[[list[Group]], list[Group]], monkeypatch: Patch
) -> None:
    real = Collector._answers

    async def answers(self: Collector, *args: Any) -> list[Group]:
        return change(await real(self, *args))

    monkeypatch.setattr(Collector, "_answers", answers)
    assert proofs(FACTS)["pairs/rollouts"].status == "fail"


SOUND: dict[str, Rows] = {
    "facts": FACTS,
    "one answer for all": [{"prompt": row["prompt"], "answer": "I do not know."} for row in FACTS],
    "two answers": [{"prompt": row["prompt"], "answer": "yes" if i % 2 else "no"} for i, row in enumerate(FACTS)],
    "nothing in common": [{"prompt": f"What is {i} times {i + 7}?", "answer": str(i * (i + 7))} for i in range(40)],
    "passages of several rows": [
        {"prompt": f"{NAMES[i // 4]} met {NAMES[-1 - i // 4]}. Question {i % 4}?", "answer": answer}
        for i in range(80)
        for answer in [NAMES[[-1 - i // 4, i // 4][i % 2]]]
    ],
    "talk that goes on": [
        {"prompt": f"{before} I am {NAMES[i]}.", "answer": f"Hello {NAMES[i]}."}
        for i in range(24)
        for before in [" ".join(f"I am {name}. Hello {name}." for name in NAMES[:i])]
    ],
}


@pytest.mark.parametrize("kind", SOUND)
@pytest.mark.night
@pytest.mark.parametrize("seed", range(cases(2, 5)))
def test_sound_pairs_raise_no_alarm(kind: str, seed: int) -> None:
    said = checks(SOUND[kind], f"seed={seed}")
    assert {name: check.message for name, check in said.items() if check.status != "pass"} == {}


def test_bounds_hold_by_simulation() -> None:
    rng = np.random.default_rng(0)
    matches = [(rng.permutation(12) == np.arange(12)).sum() for _ in range(4000)]
    throws = [len(set(rng.integers(12, size=12))) for _ in range(4000)]
    for k in (2, 3, 4):
        assert np.mean([m >= k for m in matches]) <= matches_p(k) + 0.02
    for k in (8, 9, 10):
        assert np.mean([t >= k for t in throws]) == pytest.approx(spread_p(k, 12, 12), abs=0.03)
    noise = [permutation_fit(rng.random((8, 8)), rng, 99).p for _ in range(400)]
    assert np.mean([p <= 0.05 for p in noise]) < 0.09
    counts = rng.poisson(3.0, size=4000)
    assert np.mean([count_log_e(int(n), 3.0) > np.log(20) for n in counts]) <= 0.05
    assert sign_p(10, 0) == 2.0**-10
