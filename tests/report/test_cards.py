"""Verdicts: better than chance, worse than chance, or neither, in words that the numbers bear out."""

from __future__ import annotations

import pytest

import strata_summary
from levelhead.diagnosis import verdict as verdicts
from levelhead.report.cards import headline, judge, task_cards
from levelhead.report.reading import Run
from levelhead.report.scores import stage_of


def stage(score: float, se: float | None = 0.1) -> dict[str, object]:
    return {"score": score, "se": se, "validity": 0.5, "length": 12.0, "n": 64}


def run_of(**changes: float) -> Run:
    """An older run: its summary knows neither strata nor a constant answer."""
    tasks = {task: {"sft": stage(0.0), "grpo": stage(change)} for task, change in changes.items()}
    return Run("x", summary={"tasks": tasks})


def judged(**verdicts: bool) -> Run:
    """A run whose tasks have verdicts, and scores that rose."""
    run = run_of(**dict.fromkeys(verdicts, 1.0))
    run.summary["verdict"] = {
        task: {"improved": good, "text": f"{task} <was> judged."} for task, good in verdicts.items()
    }
    return run


@pytest.mark.parametrize(
    ("change", "word", "tone"),
    [(1.0, "score rose", "info"), (-1.0, "score fell", "bad"), (0.2, "no clear change", "warn")],
)
def test_without_a_baseline_nothing_is_called_improved(change: float, word: str, tone: str) -> None:
    found = judge(run_of(a=change).summary, "a")
    assert found is not None
    assert (found.word, found.tone) == (word, tone)
    assert found.text == "Not measured against a constant answer."


def test_the_runs_own_verdict_counts_and_not_the_rise_of_its_score() -> None:
    good, bad = judge(judged(a=True).summary, "a"), judge(judged(a=False).summary, "a")
    assert good is not None
    assert bad is not None
    assert (good.word, good.tone, good.text) == ("improved", "good", "a <was> judged.")
    assert (bad.word, bad.tone) == ("not improved", "warn")


def test_what_fell_by_its_balanced_score_is_worse() -> None:
    run = judged(a=False)
    last = run.summary["tasks"]["a"]["grpo"]
    last["balanced"] = {"score": -1.0, "se": 0.1}
    run.summary["tasks"]["a"]["sft"]["balanced"] = {"score": 0.0, "se": 0.1}
    found = judge(run.summary, "a")
    assert found is not None
    assert (found.word, found.tone) == ("worse", "bad")


def test_headline_and_card_say_what_the_verdict_says_and_nothing_else() -> None:
    # Two items without any error, and a score that fell: the pill said "worse", the sentence "too few items".
    own = stage(0.5) | {"se": 0.0, "n": 2}
    summary = {"tasks": {"a": {"sft": own, "grpo": {**own, "score": -1.0}}}}
    verdict = verdicts.judge(summary["tasks"]["a"])
    assert verdict is not None
    for stored in (verdict.to_json(), {"improved": False, "text": verdict.text}):  # the second of an older version
        run = Run("x", summary={**summary, "verdict": {"a": stored}})
        found = judge(run.summary, "a")
        assert found is not None
        assert (found.word, found.tone, found.text) == ("undecided", "info", verdict.text)
        assert headline(run) == "Undecided on a."
    found = judge(summary, "a")  # a run that did not come to its end
    assert found is not None
    assert found.word == "no clear change"


def test_one_stage_is_no_comparison() -> None:
    assert judge({"tasks": {"a": {"grpo": stage(0.5)}}}, "a") is None
    assert judge({"tasks": {"a": {"sft": stage(float("nan")), "grpo": stage(0.5)}}}, "a") is None
    run = Run("x", summary={"tasks": {"a": {"grpo": stage(0.5)}}})
    assert "not been evaluated before and after" in headline(run)
    assert "0.5" in task_cards(run)


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (run_of(a=1.0), "Held-out score rose on a. Not measured against a constant answer."),
        (run_of(a=1.0, b=-1.0), "Held-out score rose on a and fell on b. Not measured against a constant answer."),
        (
            run_of(a=0.0, b=0.1),
            "No change of the held-out score beyond chance. Not measured against a constant answer.",
        ),
        (
            judged(a=True),
            "The task improved: above the stage before, above the best constant answer, and no stratum fell.",
        ),
        (
            judged(a=True, b=True),
            "Both tasks improved: above the stage before, above the best constant answer, and no stratum fell.",
        ),
        (judged(a=True, b=False), "Improved on a; not improved on b."),
        (judged(a=False, b=False), "Not improved on a and b."),
    ],
)
def test_the_headline_says_what_the_numbers_bear_out(run: Run, says: str) -> None:
    assert headline(run) == says


def test_a_card_shows_the_balanced_score_beside_the_best_constant_answer() -> None:
    run = Run("x", summary=strata_summary.summary())
    fairness, faithfulness = task_cards(run).split("</article>")[:2]
    assert "<b>+0.690</b> balanced score after GRPO" in fairness
    assert "best constant answer" in fairness
    assert strata_summary.READS in fairness
    assert "answerable questions fell from 18% to 0%" in faithfulness
    assert "not improved" in faithfulness
    assert "standard errors" not in fairness + faithfulness
    # The baseline is drawn on the scale of the balanced score.
    last = stage_of("grpo", run.summary["tasks"]["fairness"]["grpo"])
    assert last is not None
    assert last.baseline is not None
    assert last.baseline.value == pytest.approx(last.main.value - last.over_balanced.value)
    assert f"{last.baseline.value:+.3f}".replace("-", "\u2212") in fairness


def test_the_text_of_a_verdict_is_no_markup() -> None:
    assert "a &lt;was&gt; judged." in task_cards(judged(a=False))


def test_a_stop_by_the_guard_is_the_headline() -> None:
    run = run_of(a=1.0)
    run.events = [{"step": 40, "code": "entropy-collapse", "action": "stop", "message": "Entropy is <gone>."}]
    assert headline(run) == "Stopped at step 40: Entropy is &lt;gone&gt;."
