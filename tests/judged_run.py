"""A tiny run of a judged task, whose judge answers what a test says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

from levelhead.recipe.judge import Judge, Judges
from levelhead.recipe.load import parse
from levelhead.records import Prompt, Score
from levelhead.tasks.base import SingleTurnTask, Split
from levelhead.tasks.judges import JudgeGrader
from levelhead.training.prepare import prepare
from levelhead.training.resume import plan_resumption
from levelhead.training.run import Run
from levelhead.training.rundir import RunDir

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


def judged_by(
    task: SingleTurnTask,
    kind: str,
    section: Judge | Judges,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> SingleTurnTask:
    """The task with judges, in place of those that it may have."""
    task.grader = JudgeGrader(task, kind, section, transport)
    return task


def run_with(folder: Path, reply: str, *settings: str, **keys: Any) -> Path:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json={"choices": [{"message": {"content": reply}}]})

    section = Judge(base_url="http://judge.test/v1", model="m", attempts=1, rubric="Is it even?", **keys)
    assert judged_run(folder, section, *settings, transport=httpx2.MockTransport(answer)).execute() == "done"
    return folder


def judged_run(
    folder: Path,
    section: Judge | Judges,
    *settings: str,
    transport: httpx2.AsyncBaseTransport | None = None,
    resume: bool = False,
) -> Run:
    """A run that is ready to be executed."""
    task = judged_by(Even(), "fairness", section, transport)
    place = RunDir(folder)
    recipe = parse(RECIPE, settings, source="judged")
    plan = plan_resumption(place, recipe) if resume else None
    setup = prepare(recipe, checkpoint=plan.checkpoint if plan else None, tasks={"even": task})
    place.claim(resume=resume)
    return Run(setup, place, resumption=plan)
