"""Faults of data and rewards: what a reward function is given, and what it returns."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from levelhead.lab.faults.registry import fault, replaced
from levelhead.records import Score
from levelhead.tasks.base import Answer, SingleTurnTask
from levelhead.tasks.function import FunctionTask

_TASKS = (FunctionTask, SingleTurnTask)


def _scores(change: Callable[[Sequence[Answer], list[Any]], list[Any]]) -> Iterator[None]:
    """Change the scores that the tasks return."""
    from contextlib import ExitStack

    def make(real: Any) -> Any:
        async def score_batch(self: Any, answers: Sequence[Answer]) -> list[Any]:
            return change(answers, await real(self, answers))

        return score_batch

    with ExitStack() as stack:
        for task in _TASKS:
            stack.enter_context(replaced(task, "score_batch", make))
        yield


def _total(score: Score | None, value: float) -> Score | None:
    return None if score is None else replace(score, total=value)


@fault("reward-constant", "the reward is the same for every answer", kind="data")
def _reward_constant() -> Iterator[None]:
    yield from _scores(lambda answers, scores: [_total(score, 1.0) for score in scores])  # noqa: ARG005


@fault("reward-upside-down", "a distance is returned where a similarity was meant", kind="data")
def _reward_upside_down() -> Iterator[None]:
    yield from _scores(lambda answers, scores: [_total(s, -s.total) for s in scores])  # noqa: ARG005


@fault("reward-not-finite", "the reward divides by a count that may be 0", kind="data")
def _reward_not_finite() -> Iterator[None]:
    yield from _scores(lambda answers, scores: [_total(s, float("nan")) for s in scores])  # noqa: ARG005


@fault("reward-by-chance", "the judge's answer is parsed wrongly: the reward is a coin", kind="data")
def _reward_by_chance() -> Iterator[None]:
    coins = random.Random(0)
    yield from _scores(lambda answers, scores: [_total(s, float(coins.random() < 0.5)) for s in scores])  # noqa: ARG005


@fault(
    "reward-of-the-next-row",
    "columns and completions are out of step: an answer is judged by the next row",
    kind="data",
)
def _reward_of_the_next_row() -> Iterator[None]:
    def make(real: Any) -> Any:
        async def score_batch(self: Any, answers: Sequence[Answer]) -> list[Any]:
            rows = list(self.prompts("train", 0))
            place = {prompt.id: i for i, prompt in enumerate(rows)}
            moved = [
                replace(a, prompt=rows[(place[a.prompt.id] + 1) % len(rows)]) if a.prompt.id in place else a
                for a in answers
            ]
            return list(await real(self, moved))

        return score_batch

    with replaced(FunctionTask, "score_batch", make):
        yield


@fault("length-is-rewarded", "every token adds to the reward: long answers win whatever they say", kind="data")
def _length_is_rewarded() -> Iterator[None]:
    def change(answers: Sequence[Answer], scores: list[Any]) -> list[Any]:
        return [_total(s, s.total + 0.2 * len(a.text)) for a, s in zip(answers, scores, strict=True)]

    yield from _scores(change)


@fault("format-nobody-meets", "the verifier looks for a tag that no answer has", kind="data")
def _format_nobody_meets() -> Iterator[None]:
    def change(answers: Sequence[Answer], scores: list[Any]) -> list[Any]:
        return [_total(s, s.total if "</answer>" in a.text else 0.0) for a, s in zip(answers, scores, strict=True)]

    yield from _scores(change)


@fault("empty-answers-pass", "the verifier finds nothing wrong with an answer that says nothing", kind="data")
def _empty_answers_pass() -> Iterator[None]:
    def change(answers: Sequence[Answer], scores: list[Any]) -> list[Any]:
        return [_total(s, 1.0 if len(a.text.strip()) < 2 else s.total) for a, s in zip(answers, scores, strict=True)]

    yield from _scores(change)


@fault("demonstrations-out-of-step", "demonstrations hold the answer of another prompt", kind="data")
def _demonstrations_out_of_step() -> Iterator[None]:
    def make(real: Any) -> Any:
        def oracle(self: Any, prompt: Any) -> Any:
            rows = list(self.prompts("train", 0))
            place = {row.id: i for i, row in enumerate(rows)}
            return real(self, rows[(place.get(prompt.id, 0) + 1) % len(rows)])

        return oracle

    with replaced(FunctionTask, "oracle", make):
        yield
