"""Judges at made-up addresses, each of which does what a test says; and a task that they grade."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import httpx2

from judged_run import Even, judged_by
from levelhead.recipe.judge import Judges
from levelhead.records import Score
from levelhead.tasks.base import Answer, SingleTurnTask

Reply = httpx2.Response | str


@dataclass
class Hosts:
    """Judges by name: the host ``NAME.test`` answers as the function of that name says, or with a constant text."""

    says: dict[str, Callable[[str], Reply] | Reply]
    asked: Counter[str] = field(default_factory=Counter)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        name = request.url.host.removesuffix(".test")
        self.asked[name] += 1
        body = json.loads(request.content)
        self.bodies.append(body)
        said = self.says[name]
        reply = said(body["messages"][-1]["content"]) if callable(said) else said
        if isinstance(reply, str):
            usage = {"prompt_tokens": 100, "completion_tokens": 10}
            return httpx2.Response(200, json={"choices": [{"message": {"content": reply}}], "usage": usage})
        return httpx2.Response(reply.status_code, content=reply.content, headers=reply.headers)

    def judges(self, **keys: Any) -> Judges:
        shared = {"backoff_s": 0.001, "patience_s": 0.05, "attempts": 1, **keys.pop("member", {})}
        members = [{"name": n, "base_url": f"http://{n}.test/v1", "model": "m", **shared} for n in self.says]
        return Judges.model_validate({"members": members, "fallback_after_s": 0, "rubric": "Is it even?", **keys})

    def task(self, **keys: Any) -> SingleTurnTask:
        return judged_by(Even(), "even", self.judges(**keys), httpx2.MockTransport(self))


def even_answers(task: SingleTurnTask, groups: int, k: int = 2) -> list[Answer]:
    """Right answers to some prompts, no two alike."""
    prompts = list(islice(task.prompts("train", 0), groups))
    return [Answer(prompt, "ab" * (n + 1)) for prompt in prompts for n in range(k)]


def grades(task: SingleTurnTask, answers: Sequence[Answer]) -> list[float | None]:
    scores: list[Score | None] = asyncio.run(task.rewarded(answers))
    return [None if score is None else score.info["judge"] for score in scores]
