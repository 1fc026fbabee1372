"""A recipe with a judge that is a function, for tests of the preflight."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx2

from judged_run import judged_by
from levelhead.contrib.fairness import FairnessTask
from levelhead.recipe.judge import Judge
from levelhead.recipe.load import parse
from levelhead.recipe.tasks import Fairness
from levelhead.training.prepare import Setup, prepare

RECIPE = """
name: judged
model:
  preset: tiny
  dtype: float32
  tiny: {hidden_size: 32, layers: 2, heads: 2, kv_heads: 1, intermediate_size: 48, vocab_size: 320, context: 512}
tasks:
  - kind: fairness
    items: 40
    judge: {base_url: "http://judge.test/v1", model: m}
grpo: {steps: 1, batch_size: 4, group_size: 2, sampling: {max_new_tokens: 8}}
"""
Verdict = Callable[[str, str], str]


def setup_with(verdict: Verdict, status: int = 200) -> tuple[Setup, list[str]]:
    """A set-up whose judge is a function of the perfect answer and the answer, and all that it was shown."""
    shown: list[str] = []

    async def reply(request: httpx2.Request) -> httpx2.Response:
        text = json.loads(request.content)["messages"][-1]["content"]
        shown.append(text)
        if status != 200:
            return httpx2.Response(status, text="no entry")
        perfect = text.partition("for comparison:\n")[2].split("\n\n[answer")[0]
        answer = text.split("[answer ")[1].split("]\n", 1)[1].rsplit("\n[end of answer", 1)[0]
        return httpx2.Response(200, json={"choices": [{"message": {"content": verdict(perfect, answer)}}]})

    task = FairnessTask(Fairness(kind="fairness", items=40))
    section = Judge(base_url="http://judge.test/v1", model="m", attempts=1, backoff_s=0.001, patience_s=0)
    judged = judged_by(task, "fairness", section, httpx2.MockTransport(reply))
    return prepare(parse(RECIPE, (), source="judged"), tasks={"fairness": judged}), shown


def sound(perfect: str, answer: str) -> str:
    return f"Grade: {9 if answer == perfect else 2 if answer else 0}"
