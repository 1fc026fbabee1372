"""A run whose judge fails says so in every place where somebody looks, and goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from levelhead.recipe.judge import Judge
from levelhead.recipe.load import parse
from levelhead.records import Prompt, Score
from levelhead.tasks.base import SingleTurnTask, Split
from levelhead.tasks.judge import JudgedTask
from levelhead.training.prepare import prepare
from levelhead.training.run import Run
from levelhead.training.rundir import RunDir
from levelhead.watch.doctor import examine
from small_run import events, steps

RECIPE = """
name: judged
model:
  preset: tiny
  dtype: float32
  tiny: {hidden_size: 32, layers: 2, heads: 2, kv_heads: 1, intermediate_size: 48, vocab_size: 300, context: 128}
tasks: [{kind: fairness, name: even, items: 20}]
grpo: {steps: 3, batch_size: 8, group_size: 4, sampling: {max_new_tokens: 6}}
eval: {items: 2, final_items: 2, sampling: {max_new_tokens: 4}}
"""


class Even(SingleTurnTask):
    """Right is an answer with an even number of characters."""

    name = "even"

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        for i in range(6):
            yield Prompt(f"{split}-{i}", self.name, ({"role": "user", "content": f"question {i}"},))

    def score(self, prompt: Prompt, text: str) -> Score:
        return Score(-1.0 if len(text) % 2 else 1.0)


def run_with(folder: Path, reply: str, *settings: str, **keys: Any) -> Path:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json={"choices": [{"message": {"content": reply}}]})

    section = Judge(base_url="http://judge.test/v1", model="m", attempts=1, rubric="Is it even?", **keys)
    task = JudgedTask(Even(), "fairness", section, httpx2.MockTransport(answer))
    setup = prepare(parse(RECIPE, settings, source="judged"), tasks={"even": task})
    place = RunDir(folder)
    place.claim(resume=False)
    assert Run(setup, place).execute() == "done"
    return folder


def test_a_judge_without_grades_is_in_metrics_events_and_diagnosis(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", "I would rather not say.", prompt_price=1.0)
    rows = steps(run, "grpo")
    assert all(row["judge/failures"] == row["judge/verdicts"] > 0 for row in rows)
    assert all(row["judge/failure_rate"] == 1 for row in rows)
    named = {"judge/calls", "judge/cached", "judge/retries", "judge/prompt_tokens", "judge/cost", "judge/latency_p95"}
    assert named <= set(rows[0])
    told = {(event["step"], event["code"], event["severity"]) for event in events(run)}
    assert {(step, "judge-failure", "critical") for step in (1, 2, 3)} <= told
    report = examine(run)
    assert (report.diagnosis.verdict, report.diagnosis.findings[0].code) == ("critical", "judge-failure")


@pytest.mark.parametrize("dynamic_sampling", [0, 1])
def test_a_run_goes_on_where_every_rollout_is_dropped(tmp_path: Path, dynamic_sampling: int) -> None:
    run = run_with(tmp_path / "run", "no", f"grpo.dynamic_sampling={dynamic_sampling}", on_failure="drop")
    assert [row["num_rollouts"] for row in steps(run, "grpo")] == [0, 0, 0]
    assert all(row["dropped_rollouts"] >= 8 for row in steps(run, "grpo"))


def test_what_a_seed_fixes_is_told_from_what_it_does_not(tmp_path: Path) -> None:
    """With a cache, a second run pays for nothing: all else is the same."""
    cache = str(tmp_path / "judge.sqlite")
    one, two = (steps(run_with(tmp_path / name, "Grade: 5", cache=cache), "grpo") for name in ("one", "two"))
    paid = ("judge/calls", "judge/cached", "judge/prompt_tokens", "judge/completion_tokens")
    assert [row["judge/calls"] for row in two] == [0, 0, 0]
    assert [row["judge/calls"] + row["judge/cached"] for row in one] == [row["judge/cached"] for row in two]

    def fixed(rows: list[dict[str, Any]]) -> list[str]:
        return [
            json.dumps({k: v for k, v in row.items() if k not in paid and "latency" not in k}, sort_keys=True)
            for row in rows
        ]

    assert fixed(one) == fixed(two)
