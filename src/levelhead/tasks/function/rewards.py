"""Calling reward functions as TRL calls them, and finding out which answer one of them stumbled over."""

from __future__ import annotations

import inspect
import math
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence, Set, Sized
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from levelhead.errors import RewardError
from levelhead.records import LARGEST_REWARD
from levelhead.tasks.base import Answer
from levelhead.tasks.function.loading import Reward
from levelhead.tasks.function.notes import Notes, plain_text
from levelhead.tasks.main_thread import Outcome, OverrunError
from levelhead.tasks.threads import SignalError, run, run_async

_SHOWN = 160
_MEND = "Mend the function, or set tasks[].on_reward_error: drop to leave such answers out and count them."


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What a reward function may know of the run, under the names of ``transformers.TrainerState``.

    Attributes:
        global_step: Steps of the stage that are done; in an evaluation all of them, so that every evaluation of a run
            scores by the same rewards.
        max_steps: Steps of the stage; 0 where that is not known.
        epoch: Share of the stage that is done, from 0 to 1.
        num_train_epochs: 1: the stage.
        is_world_process_zero: Whether this is the first of the run's processes.
        is_local_process_zero: Whether it is the first of this machine's.
    """

    global_step: int = 0
    max_steps: int = 0
    epoch: float = 0.0
    num_train_epochs: int = 1
    is_world_process_zero: bool = True
    is_local_process_zero: bool = True


@dataclass(frozen=True, slots=True)
class Rated:
    """What one reward function made of a batch.

    Attributes:
        values: One an answer: a number, ``None`` where the function does not apply to the answer, or, where the answer
            could not be rated, the ``RatingError`` that says why.
        notes: What it logged.
    """

    values: list[float | RatingError | None]
    notes: Notes = field(default_factory=Notes)


class RatingError(Exception):
    """A reward function misbehaved, on a whole call (raised) or on one answer (kept in its place)."""


class SlowError(RatingError):
    """A call took longer than it may; trying its answers one by one would take as long again, many times."""


async def rate(
    reward: Reward, answers: Sequence[Answer], state: TrainerState, *, drop: bool, timeout_s: float | None = None
) -> Rated:
    """Call one reward function on a batch.

    When a call fails as a whole (it raised, or returned another number of values), the answers are tried one by one to
    find the one to blame, for as long as one call may take.  When dropping, the rest are then rated in a single call
    again, so that a function that compares the answers of a batch still sees a batch.  A call that takes too long fails
    for the whole batch.

    Args:
        reward: The function.
        answers: What to rate.
        state: Handed to the function.
        drop: Keep faults in the place of values, instead of raising.
        timeout_s: Longest that a call may take, in seconds.

    Raises:
        RewardError: The function misbehaved and ``drop`` is off; names the function, the row and the completion.
    """
    try:
        rated = await _call(reward, answers, state, timeout_s)
    except SlowError as fault:
        if not drop:
            raise _error(reward, answers[0], fault, f"a batch of {len(answers)} answers, the first of them ") from None
        return Rated([fault] * len(answers))
    except RatingError as fault:
        blamed, complete = await _blame(reward, answers, state, timeout_s, first_only=not drop)
        if not drop:
            alone = f"on none of the {len(answers)} answers alone" if complete else "on none of those tried alone"
            index, cause = next(iter(blamed.items()), (0, RatingError(f"{fault}, but {alone}; the first is")))
            raise _error(reward, answers[index], cause) from (cause.__cause__ or fault.__cause__)
        if not complete:
            return Rated([blamed.get(index, fault) for index in range(len(answers))])
        rated = await _rate_the_rest(reward, answers, state, blamed, fault, timeout_s)
    if not drop:
        for answer, value in zip(answers, rated.values, strict=True):
            if isinstance(value, RatingError):
                raise _error(reward, answer, value)
    return rated


def not_rated(rewards: Sequence[Reward], answer: Answer) -> RewardError:
    """Return the error of an answer to which every reward function returned ``None``."""
    if len(rewards) == 1:
        return _error(rewards[0], answer, RatingError("returned None"))
    sources = ", ".join(reward.source for reward in rewards)
    return RewardError(f"all reward functions ({sources}) returned None: {_where(answer)}.\n{_MEND}")


async def _call(reward: Reward, answers: Sequence[Answer], state: TrainerState, timeout_s: float | None) -> Rated:
    """Call the function and read what it returns, all where the user's functions run."""
    notes = Notes(len(answers))
    arguments = _arguments(answers, state, notes)
    if reward.accepts is not None:
        arguments = {name: value for name, value in arguments.items() if name in reward.accepts}
    start = time.monotonic()

    async def awaited(result: Any = None) -> Any:
        return _read(await (reward.function(**arguments) if result is None else result), len(answers))

    def called() -> Any:
        result = reward.function(**arguments)
        return result if inspect.isawaitable(result) else _read(result, len(answers))

    try:
        if reward.is_async:
            outcome = await run_async(awaited, timeout_s, reward.file)
        else:
            outcome = await run(called, timeout_s, reward.file)
            if inspect.isawaitable(outcome.value):
                remaining_s = None if timeout_s is None else max(timeout_s - (time.monotonic() - start), 0.0)
                outcome = await run_async(partial(awaited, outcome.value), remaining_s, reward.file)
    except OverrunError as late:
        at = f"; it was at {late.place}" if late.place else ""
        raise SlowError(
            f"took longer than {timeout_s:g} s (tasks[].reward_timeout_s) on {len(answers)} answers{at}"
        ) from None
    return Rated(_values(outcome, len(answers), notes), notes)


def _values(outcome: Outcome, n: int, notes: Notes) -> list[float | RatingError | None]:
    """What a call came to; raises where it is no list of n values."""
    error = outcome.error
    if isinstance(error, RatingError):
        raise error
    if isinstance(error, SignalError):
        raise RatingError(str(error))
    if error is not None:
        raise RatingError(f"raised {_said(error)}{_place(error)}") from error
    if fault := notes.fault():
        raise RatingError(fault)
    values = outcome.value
    if not isinstance(values, list):
        raise RatingError(f"returned {type(values).__name__} where a list of {n} numbers was wanted")
    return values


def _read(result: Any, n: int) -> list[float | RatingError | None]:
    """Read the values that a function returned; runs code of the user's, where the result is a generator."""
    if isinstance(result, str | bytes | Mapping | Set) or not isinstance(result, Iterable):  # a set has no order
        raise RatingError(f"returned {type(result).__name__} where a list of {n} numbers was wanted")
    values = list(islice(result, n + 1))  # an iterator may have no end
    if len(values) != n:
        more = f"{len(result)}" if isinstance(result, Sized) else f"more than {n}" if len(values) > n else len(values)
        raise RatingError(f"returned {more} values for {n} completions")
    return [_number(value) for value in values]


async def _blame(
    reward: Reward, answers: Sequence[Answer], state: TrainerState, timeout_s: float | None, *, first_only: bool
) -> tuple[dict[int, RatingError], bool]:
    """Return the answers (index in the batch) that make a call fail on their own, and whether all have been tried."""
    blamed: dict[int, RatingError] = {}
    end = None if timeout_s is None else time.monotonic() + timeout_s
    for index, answer in enumerate(answers):
        remaining_s = None if end is None else end - time.monotonic()
        if remaining_s is not None and remaining_s <= 0:
            return blamed, False
        try:
            value = (await _call(reward, [answer], state, remaining_s)).values[0]
        except SlowError:
            return blamed, False
        except RatingError as fault:
            value = fault
        if isinstance(value, RatingError):
            blamed[index] = value
            if first_only:
                break
    return blamed, True


async def _rate_the_rest(
    reward: Reward,
    answers: Sequence[Answer],
    state: TrainerState,
    blamed: Mapping[int, RatingError],
    fault: RatingError,
    timeout_s: float | None,
) -> Rated:
    rest = [index for index in range(len(answers)) if index not in blamed]
    values: list[float | RatingError | None] = [blamed.get(index, fault) for index in range(len(answers))]
    if not rest or not blamed:
        return Rated(values)
    try:
        rated = await _call(reward, [answers[index] for index in rest], state, timeout_s)
    except RatingError:
        return Rated(values)
    for index, value in zip(rest, rated.values, strict=True):
        values[index] = value
    return Rated(values, rated.notes.spread(rest, len(answers)))


def _arguments(answers: Sequence[Answer], state: TrainerState, notes: Notes) -> dict[str, Any]:
    """Build the keyword arguments of TRL's call: columns first, so that none of them hides a standard one.

    Every answer gets copies of its own, so that a function which changes what it is given changes nothing else.
    """
    facts = [answer.prompt.facts for answer in answers]
    columns = {name: [copied(fact["columns"][name]) for fact in facts] for name in facts[0]["columns"]}
    texts = [isinstance(fact["prompt"], str) for fact in facts]
    live = {"environments": [fact["environment"] for fact in facts]} if "environment" in facts[0] else {}
    return (
        columns
        | live
        | {
            "prompts": [copied(fact["prompt"]) for fact in facts],
            "completions": [
                answer.text if text else [*copied(list(answer.turns)), {"role": "assistant", "content": answer.text}]
                for answer, text in zip(answers, texts, strict=True)
            ],
            "completion_ids": [list(answer.token_ids) for answer in answers],
            "trainer_state": state,
            "log_extra": notes.log_extra,
            "log_metric": notes.log_metric,
        }
    )


def copied(value: Any) -> Any:
    """Return a deep copy of a value; the value itself where it cannot be changed or cannot be copied (a model)."""
    if value is None or isinstance(value, str | int | float | bytes):
        return value
    if type(value) is list:
        return [copied(item) for item in value]
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    try:
        return deepcopy(value)
    except Exception:
        return value


def _number(value: Any) -> float | RatingError | None:
    if value is None:
        return None
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


def _error(reward: Reward, answer: Answer, fault: RatingError, before: str = "") -> RewardError:
    on = f": {before}{_where(answer)}"
    if not isinstance(fault, SlowError):
        return RewardError(f"reward function {reward.source} {fault}{on}.\n{_MEND}")
    return RewardError(
        f"reward function {reward.source} {fault}{on}.\n"
        "Mend the function, raise tasks[].reward_timeout_s, or set tasks[].on_reward_error: drop."
    )


def _where(answer: Answer) -> str:
    facts = answer.prompt.facts
    return f"{facts['where']} (row {facts['row']}, id {answer.prompt.id!r}), completion {_shorten(answer.text)!r}"


def _said(error: BaseException) -> str:
    """The kind of an error and its message; an error of the user's may not even be printable."""
    try:
        text = _shorten(str(error))
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: BaseException) -> str:
    """File and line that raised, of the user's code: of the error itself, else of what it stands for."""
    for one in (error, error.__cause__):
        frames = traceback.extract_tb(one.__traceback__) if one is not None else []
        own = [frame for frame in frames if not frame.filename.startswith(_HERE)]
        if own:
            return f" ({own[-1].filename}, line {own[-1].lineno})"
    return ""


_HERE = str(Path(__file__).parents[1])


def _shorten(text: str) -> str:
    text = plain_text(text)
    if len(text) <= _SHOWN:
        return text
    half = (_SHOWN - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
