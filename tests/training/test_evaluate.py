"""Evaluations: strata, balanced scores and constant answers beside the score; like is compared with like."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from levelhead.api import train
from levelhead.recipe.tasks import Faithfulness
from levelhead.recipe.training import Evaluation
from levelhead.records import Group, Prompt, Rollout, Score, Turn
from levelhead.tasks.base import SingleTurnTask, Split
from levelhead.tasks.constant import Estimate
from levelhead.tasks.registry import make_task
from levelhead.training.collect import Collected
from levelhead.training.evaluate import Baselines, balanced_mean, evaluate
from levelhead.training.evaluator import selection
from levelhead.training.loop import EventLoop
from small_run import events, metrics, recipe, write_rows

ABSTAIN = "Evidence: none\nAnswer: unknown"


class Writes:
    """A collector whose policy writes what a function of the prompt says."""

    def __init__(self, task: SingleTurnTask, policy: Callable[[Prompt], str]) -> None:
        self.task, self.policy = task, policy

    def run(self, prompts: Sequence[Prompt], k: int, controls: Any, seed: int) -> Collected:
        return Collected([self._group(prompt) for prompt in prompts])

    def completion_ids(self, prompt: Prompt, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def _group(self, prompt: Prompt) -> Group:
        text = self.policy(prompt)
        turn = Turn((1,), (2,), (0.0,), (0.0,), "stop")
        return Group(prompt, (Rollout(prompt.id, (turn,), self.task.score(prompt, text), 0, (text,)),))


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    made = EventLoop()
    yield made
    made.close()


class Numbers(SingleTurnTask):
    """Prompts 0 to 99; every fifth is rare.  Right answers are the prompt's number."""

    name = "numbers"

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        for i in range(100):
            yield Prompt(f"{split}-{i}", self.name, ({"role": "user", "content": str(i)},), facts={"i": i})

    def strata(self, prompt: Prompt) -> Mapping[str, str]:
        i = prompt.facts["i"]
        return {"kind": "rare" if i % 5 == 0 else "common", "half": "first" if i < 50 else "second"}

    def score(self, prompt: Prompt, text: str) -> Score:
        right = float(text == str(prompt.facts["i"]) or (text == "rare" and prompt.facts["i"] % 5 == 0))
        return Score(right, {"correct": right})

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        return {"accuracy": sum(r.reward for _, r in results) / len(results), "noise": 1.0}


def test_balanced_score_by_hand() -> None:
    balanced = balanced_mean([1.0, 1.0, 0.0, 1.0, 0.0], ["a", "a", "b", "b", "b"])
    assert balanced.score == pytest.approx((1 + 1 / 3) / 2)
    assert balanced.se == pytest.approx(math.sqrt(0 + (1 / 3) ** 2) / 2)  # sample std of (0, 1, 0) is 1 / sqrt 3
    assert balanced_mean([2.0, 4.0], ["", ""]) == Estimate.of([2.0, 4.0])
    assert balanced_mean([], []) == Estimate(0.0, 0.0)


def test_a_stratum_of_one_item_has_the_spread_of_the_others() -> None:
    # Within "b" the variance is 1/3; "a" has one item of that variance: (1/3 + 1/9) / 4.
    balanced = balanced_mean([1.0, 0.0, 1.0, 0.0], ["a", "b", "b", "b"])
    assert balanced.score == pytest.approx((1 + 1 / 3) / 2)
    assert balanced.se == pytest.approx(math.sqrt(1 / 3 + 1 / 9) / 2)
    # Where every stratum has one item, that of them all.
    assert balanced_mean([1.0, 0.0], ["a", "b"]).se == pytest.approx(math.sqrt(0.5 + 0.5) / 2)
    assert balanced_mean([1.0], ["a"]).se == 0.0


def test_strata_hold_scores_errors_and_the_metrics_that_mean_something(loop: EventLoop) -> None:
    task = Numbers()
    collector: Any = Writes(task, lambda prompt: "rare")
    result = evaluate(
        {"numbers": task}, collector, Evaluation(), 0, 100, Baselines({"numbers": task}, collector, loop, 0)
    )
    document = json.loads(json.dumps(result["numbers"].to_json()))
    assert list(document["strata"]) == ["kind=common", "kind=rare", "half=first", "half=second"]
    assert document["strata"]["kind=rare"] == {
        "score": 1.0,
        "se": 0.0,
        "n": 20,
        "metrics": {"accuracy": 1.0},
        "constant": {"score": 1.0, "se": 0.0},
        "over_constant": {"score": 0.0, "se": 0.0},
    }
    assert document["score"] == 0.2
    assert document["balanced"] == {"score": 0.5, "se": 0.0}
    assert document["constant"]["answer"] == "rare"
    assert document["over_constant"] == {"score": 0.0, "se": 0.0, "balanced": {"score": 0.0, "se": 0.0}}
    values = result["numbers"].to_values()
    assert values["balanced"] == 0.5
    assert values["over_constant"] == 0.0
    assert values["kind=rare/score"] == 1.0


def test_a_reader_is_above_the_best_constant_by_paired_errors(loop: EventLoop) -> None:
    task = make_task(Faithfulness(kind="faithfulness", items=600))
    assert isinstance(task, SingleTurnTask)
    for policy, over in ((lambda p: task.oracle(p)[0], True), (lambda _: ABSTAIN, False)):  # type: ignore[index]
        collector: Any = Writes(task, policy)
        baselines = Baselines({"faithfulness": task}, collector, loop, 0)
        result = evaluate({"faithfulness": task}, collector, Evaluation(), 0, 200, baselines)["faithfulness"]
        assert result.over_constant is not None
        assert (result.over_constant.all.score > 2 * result.over_constant.all.se) == over
        if not over:
            assert result.over_constant.all == Estimate(0.0, 0.0)
            assert result.strata["answerable=yes"].metrics == {"exact_match": 0.0, "quoted": 0.0, "abstained": 1.0}


def test_checkpoints_are_compared_on_the_items_that_all_evaluations_share() -> None:
    task = Numbers()
    collector: Any = Writes(task, lambda prompt: str(prompt.facts["i"] if prompt.facts["i"] < 10 else -1))
    section = Evaluation(items=10, final_items=100)
    few = evaluate({"numbers": task}, collector, section, 0, section.items)
    many = evaluate({"numbers": task}, collector, section, 0, section.final_items)
    assert few["numbers"].score == 1.0
    assert many["numbers"].score == 0.1
    assert selection(few) == selection(many) == 1.0


def test_answers_of_earlier_evaluations_are_candidates_and_survive_a_resume(loop: EventLoop) -> None:
    task = Numbers()

    def result(baselines: Baselines, text: str) -> str:
        collector: Any = Writes(task, lambda prompt: text)
        constant = evaluate({"numbers": task}, collector, Evaluation(), 0, 40, baselines)["numbers"].constant
        assert constant is not None
        return constant.answer

    first = Baselines({"numbers": task}, Writes(task, lambda p: ""), loop, 0)  # type: ignore[arg-type]
    assert result(first, "rare") == "rare"
    resumed = Baselines({"numbers": task}, Writes(task, lambda p: ""), loop, 0)  # type: ignore[arg-type]
    assert result(resumed, "nothing") != "rare"
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert result(resumed, "nothing") == "rare"


REWARDS = """
def trap(prompts, completions, completion_ids, answer, **columns):
    # "none" pays on every fifth row and costs little elsewhere; any other answer costs most, unless it is right.
    def one(text, right):
        if text == right:
            return 1.0
        return -0.3 if text == "none" else -1.0
    return [one(text.strip(), right) for text, right in zip(completions, answer)]
"""

HARD = """
def hard(prompts, completions, completion_ids, row, **columns):
    return [1.0 if number in SHARED else 0.0 for number in row]
"""


def trap(folder: Path, **changes: Any) -> dict[str, Any]:
    """A recipe in which saying "none" pays more than what three SFT steps teach."""
    rows = [
        {"prompt": f"question {i}?", "answer": "none" if i % 5 == 0 else f"{i}", "known": i % 5 > 0} for i in range(80)
    ]
    write_rows(folder / "trap.jsonl", rows)
    (folder / "trap.py").write_text(REWARDS, encoding="utf-8")
    task = {
        "name": "trap",
        "kind": "function",
        "path": str(folder / "trap.jsonl"),
        "rewards": [f"{folder / 'trap.py'}:trap"],
        "oracle": "answer",
        "eval_fraction": 0.5,
        "strata": ["known"],
    }
    return recipe(folder, **{"tasks": [task], "eval__items": 8, "eval__final_items": 40, **changes})


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


def test_a_run_warns_of_the_constant_answer_before_grpo_and_its_verdict_says_it(tmp_path: Path) -> None:
    result = train(trap(tmp_path, eval__every=2), out=tmp_path / "run")
    (warning,) = [event for event in events(result.folder) if event["code"] == "constant-answer"]
    assert warning["severity"] == "warning"
    assert warning["action"] == "warn"
    assert warning["step"] == 3
    assert "trap: a policy that always answers 'none' scores" in warning["message"]
    assert "sft.steps above 3" in warning["message"]
    assert "tasks[].balance: true" in warning["message"]
    summary = json.loads((result.folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["tasks"]["trap"]["grpo"]["constant"]["answer"] == "none"
    assert set(summary["tasks"]["trap"]["grpo"]["strata"]) == {"known=True", "known=False"}
    assert summary["verdict"]["trap"]["improved"] is False
    rows = [row for row in metrics(result.folder) if row["stage"] == "eval"]
    assert {"eval/trap/balanced", "eval/trap/over_constant", "eval/trap/known=True/score"} <= set(rows[-1])
    lines = (result.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    timed = [row for row in map(json.loads, lines) if row["stage"] == "eval"]
    assert all(row["time/eval"] >= row["time/constant"] >= 0 for row in timed)
    # Three evaluations of 40 items, one of 8 on the way; the best one is chosen on the 8 that all share.
    assert len(rows) == 4


def test_a_constant_answer_is_not_looked_for_where_the_recipe_says_so(tmp_path: Path) -> None:
    result = train(trap(tmp_path, eval__constant=False), out=tmp_path / "run")
    assert events(result.folder) == []
    assert "constant" not in result.summary["tasks"]["trap"]["grpo"]
    assert (
        "constant answer" in result.summary["verdict"]["trap"]["text"]
        or not result.summary["verdict"]["trap"]["improved"]
    )


def test_the_last_policy_is_best_where_it_is_as_good_on_the_shared_items(tmp_path: Path) -> None:
    """The final evaluation has more and harder items: by its whole score it would lose to any on the way."""
    (tmp_path / "hard.py").write_text(HARD, encoding="utf-8")
    rows = [{"prompt": f"question {i}?", "answer": f"{i}", "row": i} for i in range(40)]
    write_rows(tmp_path / "rows.jsonl", rows)
    from levelhead.recipe import validate
    from levelhead.rollout.draws import derive
    from levelhead.training.prepare import make_tasks

    task = {
        "name": "hard",
        "kind": "function",
        "path": str(tmp_path / "rows.jsonl"),
        "rewards": [f"{tmp_path / 'hard.py'}:hard"],
        "oracle": "answer",
        "eval_fraction": 0.5,
    }
    given = recipe(tmp_path, tasks=[task], eval__items=4, eval__final_items=20, eval__every=2)
    made = make_tasks(validate(given))["hard"]
    shared = [p.facts["columns"]["row"] for p in made.prompts("eval", derive(3, "eval", "hard"))][:4]
    source = (tmp_path / "hard.py").read_text(encoding="utf-8").replace("SHARED", str(shared))
    (tmp_path / "hard.py").write_text(source, encoding="utf-8")
    result = train(given, out=tmp_path / "run")
    state = json.loads((result.folder / "checkpoints" / "best" / "state.json").read_text(encoding="utf-8"))
    assert result.summary["tasks"]["hard"]["grpo"]["score"] < 0.5
    assert state["best"] == 1.0
    assert state["step"] == 4
