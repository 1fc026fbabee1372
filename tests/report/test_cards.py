"""Verdicts: better than chance, worse than chance, or neither, in words that the numbers bear out."""

from __future__ import annotations

import pytest

from levelhead.report.cards import headline, judge, task_cards
from levelhead.report.reading import Run


def stage(score: float, se: float | None = 0.1) -> dict[str, object]:
    return {"score": score, "se": se, "validity": 0.5, "length": 12.0, "n": 64}


@pytest.mark.parametrize(
    ("stages", "word", "change", "errors"),
    [
        ({"sft": stage(0.0), "grpo": stage(0.5)}, "improved", 0.5, 0.5 / 0.02**0.5),
        ({"start": stage(-1.0), "sft": stage(0.5), "grpo": stage(0.0)}, "worse", -0.5, -0.5 / 0.02**0.5),
        ({"start": stage(0.0), "grpo": stage(0.2)}, "no clear change", 0.2, 0.2 / 0.02**0.5),
        ({"start": stage(0.0, None), "grpo": stage(0.2, None)}, "improved", 0.2, None),
        ({"start": stage(0.2, 0.0), "grpo": stage(0.2, 0.0)}, "no clear change", 0.0, None),
    ],
)
def test_the_last_stage_is_judged_against_the_one_before(
    stages: dict[str, object], word: str, change: float, errors: float | None
) -> None:
    verdict = judge(stages)
    assert verdict is not None
    assert verdict.word == word
    assert verdict.change == pytest.approx(change)
    assert verdict.errors == (None if errors is None else pytest.approx(errors))


def test_one_stage_is_no_comparison() -> None:
    assert judge({"grpo": stage(0.5)}) is None
    assert judge({"sft": stage(float("nan")), "grpo": stage(0.5)}) is None
    run = Run("x", summary={"tasks": {"a": {"grpo": stage(0.5)}}})
    assert "not been evaluated before and after" in headline(run)
    assert "0.5" in task_cards(run)


def run_of(**changes: float) -> Run:
    tasks = {task: {"sft": stage(0.0), "grpo": stage(change)} for task, change in changes.items()}
    return Run("x", summary={"tasks": tasks})


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (run_of(a=1.0), "Held-out score rose on the task since SFT, by more than two standard errors."),
        (run_of(a=1.0, b=1.0, c=1.0), "rose on all 3 tasks since SFT"),
        (run_of(a=1.0, b=0.0), "rose on a since SFT; elsewhere no change beyond chance."),
        (run_of(a=1.0, b=-1.0), "fell on b and rose on a since SFT."),
        (run_of(a=0.0, b=0.1), "No change of the held-out score beyond chance since SFT."),
    ],
)
def test_the_headline_says_what_the_numbers_bear_out(run: Run, says: str) -> None:
    assert says in headline(run)


def test_a_stop_by_the_guard_is_the_headline() -> None:
    run = run_of(a=1.0)
    run.events = [{"step": 40, "code": "entropy-collapse", "action": "stop", "message": "Entropy is <gone>."}]
    assert headline(run) == "Stopped at step 40: Entropy is &lt;gone&gt;."
