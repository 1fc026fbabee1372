"""Faults of data and rewards: what a reward function is given, and what it returns."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from faults.known.registry import fault, replaced
from levelhead.records import Score
from levelhead.tasks.base import Answer, SingleTurnTask
from levelhead.tasks.function import FunctionTask

_TASKS = (FunctionTask, SingleTurnTask)


def _scores(change: Callable[[Sequence[Answer], list[Any]], list[Any]]) -> Iterator[None]:
    """Change the scores that the tasks return."""

    def make(real: Any) -> Any:
        async def score_batch(self: Any, answers: Sequence[Answer]) -> list[Any]:
            return change(answers, await real(self, answers))

        return score_batch

    with contextlib.ExitStack() as stack:
        for task in _TASKS:
            stack.enter_context(replaced(task, "score_batch", make))
        yield


def _total(score: Score | None, value: float) -> Score | None:
    """Return a score as a reward function that returns ``value`` would have made it, its only part included."""
    return None if score is None else replace(score, total=value, parts=dict.fromkeys(score.parts, value))


@fault("reward-constant", "the reward is the same for every answer", kind="data")
def _reward_constant() -> Iterator[None]:
    yield from _scores(lambda answers, scores: [_total(score, 1.0) for score in scores])


@fault("reward-upside-down", "a distance is returned where a similarity was meant", kind="data")
def _reward_upside_down() -> Iterator[None]:
    yield from _scores(lambda answers, scores: [_total(s, -s.total) for s in scores])


@fault("reward-not-finite", "the reward divides by a count that may be 0", kind="data")
def _reward_not_finite() -> Iterator[None]:
    yield from _scores(lambda answers, scores: [_total(s, float("nan")) for s in scores])


@fault("reward-by-chance", "the judge's answer is parsed wrongly: the reward is a coin", kind="data")
def _reward_by_chance() -> Iterator[None]:
    coins = random.Random(0)
    yield from _scores(lambda answers, scores: [_total(s, float(coins.random() < 0.5)) for s in scores])


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


def _demonstrated(answer: Callable[[int, str], str]) -> contextlib.AbstractContextManager[None]:
    """Change the perfect answer of each row, given its place and what it was."""

    def make(real: Any) -> Any:
        def oracle(self: Any, prompt: Any) -> Any:
            return [answer(int(prompt.facts["row"]), text) for text in real(self, prompt)]

        return oracle

    return replaced(FunctionTask, "oracle", make)


@fault(
    "abstaining-is-paid",
    "abstaining earns as much as a right answer whatever is asked: the policy writes nothing else",
    "grpo.steps=60",
    kind="data",
)
def _abstaining_is_paid() -> Iterator[None]:
    def change(answers: Sequence[Answer], scores: list[Any]) -> list[Any]:
        return [_total(s, 1.0) if a.text == "unknown" else s for a, s in zip(answers, scores, strict=True)]

    with _demonstrated(lambda row, text: text if row % 4 else "unknown"):
        yield from _scores(change)


@fault(
    "base-rate-of-four-fifths",
    "four of five right answers are the same, and nothing in the prompt tells which: the policy learns the base rate",
    "grpo.steps=60",
    kind="data",
)
def _base_rate() -> Iterator[None]:
    def right(row: int) -> str:
        return "no" if row % 5 else "yes"

    def change(answers: Sequence[Answer], scores: list[Any]) -> list[Any]:
        pairs = zip(answers, scores, strict=True)
        return [_total(s, float(a.text == right(int(a.prompt.facts["row"])))) for a, s in pairs]

    with _demonstrated(lambda row, _: right(row)):
        yield from _scores(change)


@fault(
    "judge-likes-one-phrase",
    "the judge gives full marks to the example in its own instructions, whatever it is an answer to",
    "sft.steps=50",
    "grpo.steps=100",
    "seed=3",  # not every policy comes upon the phrase: of seeds 0 to 8 five do
    kind="data",
)
def _judge_likes_one_phrase() -> Iterator[None]:
    def change(answers: Sequence[Answer], scores: list[Any]) -> list[Any]:
        pairs = zip(answers, scores, strict=True)
        return [_total(s, 1.0 if "It is 7." in a.text else s.total / 2) for a, s in pairs]

    yield from _scores(change)
