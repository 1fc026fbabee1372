"""Answers that are paid and not right are named after the last evaluation: in the verdict and by the doctor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from faults.brought import data, rewards
from faults.brought.look import SHORT, run_of
from faults.probe import setup_of
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import diagnose
from levelhead.diagnosis.verdict import judge
from levelhead.records import Group, Prompt, Rollout, Score
from levelhead.tasks.base import SingleTurnTask
from levelhead.tasks.mutations import scorer
from levelhead.training.loop import EventLoop
from levelhead.training.shortcuts import Shortcut, shortcut

WORDS = ["lovely place", "dull film", "plain hotel", "awful market"]


def seen(rows: Sequence[dict[str, Any]], reward: Any, answers: Sequence[str], *settings: str) -> Shortcut | None:
    """What is said of a policy that gives these answers to the first prompts of a task."""
    setup = setup_of("sft=null", *settings, rows=rows, reward=reward)
    task = setup.tasks["echo"]
    assert isinstance(task, SingleTurnTask)
    loop = EventLoop()
    try:
        score = scorer(task, lambda prompt, text: (), loop.run)
        prompts: list[Prompt] = list(task.prompts("train", 0))[: len(answers)]
        marks = score(prompts, answers)
        rollouts = [Rollout(p.id, (), Score(m), 0, (a,)) for p, m, a in zip(prompts, marks, answers, strict=True)]
        groups = [Group(prompt, (rollout,)) for prompt, rollout in zip(prompts, rollouts, strict=True)]
        return shortcut(task, groups, score)
    finally:
        loop.close()


def any_word(completions: Sequence[Any], **_: Any) -> list[float]:
    """1 for the word, however often it comes."""
    return [float("elm" in rewards.text_of(c)) for c in completions]


def golds(rows: Sequence[dict[str, Any]], *settings: str) -> list[str]:
    """The right answers to the first prompts, in the order of the task."""
    task = setup_of("sft=null", *settings, rows=rows, reward=rewards.equal).tasks["echo"]
    return [(task.oracle(prompt) or [""])[0] for prompt in list(task.prompts("train", 0))[:12]]


def test_a_word_repeated_to_the_end_is_named() -> None:
    rows = [{"prompt": f"Describe the garden of house {i}.", "answer": "an old elm by the wall"} for i in range(40)]
    found = seen(rows, any_word, ["elm " * 20 + "."] * 12)
    assert found is not None
    assert (found.kind, found.share, found.count) == ("repeats", 1.0, 12)


def test_the_prompt_said_again_and_lists_of_options_are_named() -> None:
    task = setup_of("sft=null", rows=data.CHOICES, reward=rewards.gold_anywhere).tasks["echo"]
    prompts = list(task.prompts("train", 0))[:12]
    echoed = seen(data.CHOICES, rewards.gold_anywhere, [f"You ask: {p.messages[-1]['content']}" for p in prompts])
    assert echoed is not None
    assert echoed.kind == "echoes"
    listed = [p.messages[-1]["content"].split("? ")[1] for p in prompts]
    found = seen(data.CHOICES, rewards.gold_anywhere, listed)
    assert found is not None
    assert found.kind == "lists"


def test_gibberish_that_is_paid_like_the_best_answers_is_named_without_an_oracle() -> None:
    def longer(completions: Sequence[Any], **_: Any) -> list[float]:
        return [float(len(rewards.text_of(c)) >= 5) for c in completions]

    found = seen(data.REVIEWS, longer, [f"I like number {i}" for i in range(12)], "tasks.0.oracle=null")
    assert found is not None
    assert found.kind == "gibberish"


@pytest.mark.parametrize("rows", [data.REVIEWS, data.STORIES, data.CHOICES, data.BOXED], ids=len)
def test_nothing_is_said_of_right_answers(rows: Sequence[dict[str, Any]]) -> None:
    assert seen(rows, rewards.equal, golds(rows)) is None


def test_nothing_is_said_where_nothing_was_paid() -> None:
    assert seen(data.REVIEWS, rewards.equal, WORDS * 3) is None


def test_a_perfect_answer_that_repeats_itself_is_no_shortcut() -> None:
    rows = [{"prompt": f"Write the word {w} ten times.", "answer": " ".join([w] * 10)} for w in map(str, range(40))]
    assert seen(rows, rewards.equal, golds(rows)) is None


def test_the_verdict_and_the_doctor_say_so() -> None:
    result = {"score": 1.0, "se": 0.0, "n": 64, "balanced": {"score": 1.0, "se": 0.0}}
    result |= {"over_constant": {"score": 0.9, "se": 0.01}, "constant": {"answer": "x", "score": 0.1}}
    before = {"score": 0.1, "se": 0.02, "n": 64, "balanced": {"score": 0.1, "se": 0.02}}
    paid = Shortcut("repeats", "elm elm elm", 0.9, 60).to_json()
    assert judge({"start": before, "grpo": result}).improved  # type: ignore[union-attr]
    for language, word in (("en", "repeat themselves"), ("zh", "在重复自己")):
        verdict = judge({"start": before, "grpo": {**result, "shortcut": paid}}, language)  # type: ignore[arg-type]
        assert verdict is not None
        assert verdict.outcome == "not improved"
        assert word in verdict.text
    history = History()
    for step in range(1, 31):
        history.append(step, {"reward": min(1.0, step / 20)})
    event = {"code": "reward-hacking", "step": 30, "severity": "warning", "evidence": {"task": "a", "shortcut": paid}}
    assert diagnose(history, events=[event]).findings[0].code == "reward-hacking"
    assert not diagnose(history, events=[{**event, "evidence": {}}]).faulty


def test_a_run_writes_it_into_its_summary(tmp_path: Path) -> None:
    rows = [{"prompt": f"Describe house {i}.", "answer": "elm " * 12 + "."} for i in range(40)]
    run_of([*SHORT, "tasks.0.oracle=null", "sft=null", "eval.final_items=8"], any_text, rows, tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["tasks"]["echo"]["grpo"]["shortcut"]["kind"] in ("gibberish", "empty", "repeats")


def any_text(completions: Sequence[Any], **_: Any) -> list[float]:
    return [1.0 for _ in completions]
