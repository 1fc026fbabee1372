"""Calling reward functions as TRL calls them, and finding out which answer one of them stumbled over."""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from levelhead.errors import RewardError
from levelhead.records import LARGEST_REWARD
from levelhead.tasks.base import Answer
from levelhead.tasks.function.loading import Reward

_SHOWN = 160


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What a reward function may know of the run, under the names of ``transformers.TrainerState``.

    Attributes:
        global_step: Optimizer steps done.
        max_steps: Optimizer steps of the stage; 0 where that is not known.
        epoch: Share of the stage that is done, from 0 to 1.
    """

    global_step: int = 0
    max_steps: int = 0
    epoch: float = 0.0


@dataclass(slots=True)
class Notes:
    """What a reward function logged through ``log_extra`` and ``log_metric`` in one call."""

    extra: dict[str, list[Any]] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)

    def log_extra(self, column: str, values: Iterable[Any]) -> None:
        """Take a value an answer, to be kept with the samples."""
        self.extra[column] = list(values)

    def log_metric(self, name: str, value: float) -> None:
        """Take a number for this batch, to be logged with the metrics."""
        self.metrics.setdefault(name, []).append(float(value))


@dataclass(frozen=True, slots=True)
class Rated:
    """What one reward function made of a batch.

    Attributes:
        values: One an answer; where it is a ``RatingError``, the answer could not be rated.
        notes: What it logged.
    """

    values: list[float | RatingError]
    notes: Notes


class RatingError(Exception):
    """A reward function misbehaved, on a whole call (raised) or on one answer (kept in its place)."""


async def rate(reward: Reward, answers: Sequence[Answer], state: TrainerState, *, drop: bool) -> Rated:
    """Call one reward function on a batch.

    When a call fails as a whole (it raised, or returned another number of values), the answers are tried one by one to
    find the one to blame.  When dropping, the rest are then rated in a single call again, so that a function that
    compares the answers of a batch still sees a batch.

    Args:
        reward: The function.
        answers: What to rate.
        state: Handed to the function.
        drop: Keep faults in the place of values, instead of raising.

    Raises:
        RewardError: The function misbehaved and ``drop`` is off; names the function, the row and the completion.
    """
    try:
        rated = await _call(reward, answers, state)
    except RatingError as fault:
        blamed = await _blame(reward, answers, state, first_only=not drop)
        if not drop:
            together = RatingError(f"{fault}, but on none of the {len(answers)} answers alone; the first is")
            index, cause = next(iter(blamed.items()), (0, together))
            raise _error(reward, answers[index], cause) from (cause.__cause__ or fault.__cause__)
        rated = await _rate_the_rest(reward, answers, state, blamed, fault)
    if not drop:
        for answer, value in zip(answers, rated.values, strict=True):
            if isinstance(value, RatingError):
                raise _error(reward, answer, value)
    return rated


async def _call(reward: Reward, answers: Sequence[Answer], state: TrainerState) -> Rated:
    notes = Notes()
    arguments = _arguments(answers, state, notes)
    if reward.accepts is not None:
        arguments = {name: value for name, value in arguments.items() if name in reward.accepts}
    try:
        result = reward.function(**arguments)
        if inspect.isawaitable(result):
            result = await result
    except Exception as error:
        raise RatingError(f"raised {type(error).__name__}: {_shorten(str(error))}{_place(error)}") from error
    if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
        raise RatingError(f"returned {type(result).__name__} where a list of {len(answers)} numbers was wanted")
    values = list(result)
    if len(values) != len(answers):
        raise RatingError(f"returned {len(values)} values for {len(answers)} completions")
    return Rated([_number(value) for value in values], notes)


async def _blame(
    reward: Reward, answers: Sequence[Answer], state: TrainerState, *, first_only: bool
) -> dict[int, RatingError]:
    """Return the answers (index in the batch) that make a call fail on their own."""
    blamed: dict[int, RatingError] = {}
    for index, answer in enumerate(answers):
        try:
            value = (await _call(reward, [answer], state)).values[0]
        except RatingError as fault:
            value = fault
        if isinstance(value, RatingError):
            blamed[index] = value
            if first_only:
                break
    return blamed


async def _rate_the_rest(
    reward: Reward,
    answers: Sequence[Answer],
    state: TrainerState,
    blamed: Mapping[int, RatingError],
    fault: RatingError,
) -> Rated:
    rest = [index for index in range(len(answers)) if index not in blamed]
    values: list[float | RatingError] = [blamed.get(index, fault) for index in range(len(answers))]
    if not rest or not blamed:
        return Rated(values, Notes())
    try:
        rated = await _call(reward, [answers[index] for index in rest], state)
    except RatingError:
        return Rated(values, Notes())
    for index, value in zip(rest, rated.values, strict=True):
        values[index] = value
    extra: dict[str, list[Any]] = {}
    for column, logged in rated.notes.extra.items():
        by_index = dict(zip(rest, logged, strict=False))
        extra[column] = [by_index.get(index) for index in range(len(answers))]
    return Rated(values, Notes(extra, rated.notes.metrics))


def _arguments(answers: Sequence[Answer], state: TrainerState, notes: Notes) -> dict[str, Any]:
    """Build the keyword arguments of TRL's call: columns first, so that none of them hides a standard one."""
    facts = [answer.prompt.facts for answer in answers]
    columns = {name: [fact["columns"][name] for fact in facts] for name in facts[0]["columns"]}
    texts = [isinstance(fact["prompt"], str) for fact in facts]
    return columns | {
        "prompts": [
            fact["prompt"] if text else [dict(message) for message in fact["prompt"]]
            for fact, text in zip(facts, texts, strict=True)
        ],
        "completions": [
            answer.text if text else [{"role": "assistant", "content": answer.text}]
            for answer, text in zip(answers, texts, strict=True)
        ],
        "completion_ids": [list(answer.token_ids) for answer in answers],
        "trainer_state": state,
        "log_extra": notes.log_extra,
        "log_metric": notes.log_metric,
    }


def _number(value: Any) -> float | RatingError:
    if value is None:
        return RatingError("returned None")
    if isinstance(value, str | bytes):
        return RatingError(f"returned the text {_shorten(str(value))!r} where a number was wanted")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor of several numbers
        return RatingError(f"returned {type(value).__name__} where a number was wanted")
    if abs(number) <= LARGEST_REWARD:
        return number
    beyond = f", and a reward is at most {LARGEST_REWARD:g} in size" if math.isfinite(number) else ""
    return RatingError(f"returned {number}{beyond}")


def _error(reward: Reward, answer: Answer, fault: RatingError) -> RewardError:
    facts = answer.prompt.facts
    return RewardError(
        f"reward function {reward.source} {fault}: {facts['where']} (row {facts['row']}, id {answer.prompt.id!r}), "
        f"completion {_shorten(answer.text)!r}.\n"
        "Mend the function, or set tasks[].on_reward_error: drop to leave such answers out and count them."
    )


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""


def _shorten(text: str) -> str:
    if len(text) <= _SHOWN:
        return text
    half = (_SHOWN - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
