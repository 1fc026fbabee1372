"""Steadiness: what an answer is worth depends on the answer and its prompt, and on nothing else.

Known answers are scored again, one circumstance at a time changed: nothing, the global random numbers, the clock, the
process, the order of the batch, the other answers in it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import random
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, pvariance
from typing import Any

import numpy as np
import torch

from levelhead.errors import RewardError
from levelhead.preflight.context import PreflightContext
from levelhead.preflight.result import Check, judged
from levelhead.preflight.rewards import play
from levelhead.preflight.roundtrip import Known, known_answers, same, scores_of
from levelhead.records import Prompt, Score
from levelhead.tasks.base import Task
from levelhead.tasks.elsewhere import Elsewhere, elsewhere_of
from levelhead.training.prepare import name_of

NOISE = 0.25
"""Share of the rewards' variance from which what should make no difference is a failure; less may be a judge's mood."""
LATER_S = 400 * 86400.0 + 12345.0
"""Seconds that the clock is put forward."""
PLAYED = 2
"""Episodes that are played twice."""


def check_steadiness(context: PreflightContext) -> Iterator[Check]:
    """Score known answers of every task again and again."""
    for section in context.recipe.tasks:
        name = name_of(section)
        probes = known_answers(context, name)
        try:
            if probes is not None:
                elsewhere = elsewhere_of(section, probes.answers)
                with contextlib.closing(elsewhere) if elsewhere is not None else contextlib.nullcontext():
                    yield _of_answers(context, name, probes, elsewhere)
            elif not hasattr(context.setup.tasks[name], "rules"):
                yield from _of_episodes(context, name, context.setup.tasks[name])
        except RewardError as error:
            yield Check(f"rewards/steady/{name}", "fail", str(error).splitlines()[0], {}, "mend the reward")


def _of_answers(context: PreflightContext, name: str, probes: Known, elsewhere: Elsewhere | None) -> Check:
    """Compare scores; circumstances that one score may depend on by design (the batch) only warn."""
    answers = probes.answers
    score = functools.partial(scores_of, context, probes)
    base = score(answers)
    scores_by_cause = {"a second call": score(answers)}
    with _other_random_numbers():
        scores_by_cause["global random numbers"] = score(answers)
    with _later():
        scores_by_cause["the clock"] = score(answers)
    backwards = score(answers[::-1])[::-1]
    alone = [score([answer])[0] for answer in answers[:8]]
    if elsewhere is not None:
        scores_by_cause["the process"] = elsewhere.scores() or base
    counts = {what: _moved(base, other) for what, other in scores_by_cause.items()}
    counts |= {"the order of the batch": _moved(base, backwards), "the rest of the batch": _moved(base[:8], alone)}
    noise = {what: _noise(base, other) for what, other in scores_by_cause.items()}
    evidence: dict[str, Any] = {"answers": len(answers), "changed": counts, "share_of_variance": noise}
    check = f"rewards/steady/{name}"
    fix = "seed what a reward draws by its answer, and let it look at nothing but the answer and its columns"
    cause = next((what for what in scores_by_cause if counts[what]), None)
    if cause is not None:
        what = "differ when they are asked for twice" if cause == "a second call" else f"depend on {cause}"
        wrong = f"{counts[cause]} of {len(answers)} scores {what}: {_example(base, scores_by_cause[cause])}"
        return Check(check, "fail" if max(noise.values()) > NOISE else "warn", wrong, evidence, fix)
    if _out_of_step(base[:8], alone) or _out_of_step(base, backwards):
        wrong = (
            "the scores of a batch are those of its answers alone in another order: rewards and answers are out of step"
        )
        return Check(check, "fail", wrong, evidence, "return one reward a completion, in the order of the completions")
    batch = next((what for what in ("the order of the batch", "the rest of the batch") if counts[what]), None)
    if batch is not None:
        other, some = (backwards, base) if batch == "the order of the batch" else (alone, base[:8])
        wrong = f"{counts[batch]} of {len(some)} scores depend on {batch}: {_example(some, other)}"
        return Check(
            check, "warn", wrong, evidence, "fine for a reward that compares the answers of a batch; else mend it"
        )
    right = f"{len(answers)} scores stay as they are: {', '.join(counts)} make no difference"
    return Check(check, "pass", right, evidence)


def _moved(before: Sequence[Score | None], after: Sequence[Score | None]) -> int:
    return sum(not same(a, b) for a, b in zip(before, after, strict=True))


def _noise(before: Sequence[Score | None], after: Sequence[Score | None]) -> float:
    """Return the share of the variance of two readings of the same rewards that lies between the readings."""
    pairs = [(a.total, b.total) for a, b in zip(before, after, strict=True) if a is not None and b is not None]
    if not pairs or sum((a is None) != (b is None) for a, b in zip(before, after, strict=True)) > len(before) // 4:
        return 1.0 if _moved(before, after) else 0.0
    within = fmean((a - b) ** 2 / 4 for a, b in pairs)
    total = pvariance([value for pair in pairs for value in pair])
    return within / total if total > 0 else 0.0


def _out_of_step(before: Sequence[Score | None], after: Sequence[Score | None]) -> bool:
    """Whether two readings hold the same rewards, not all of them equal, in another order."""
    one, other = ([round(s.total, 9) for s in scores if s is not None] for scores in (before, after))
    return one != other and len(set(one)) > 2 and sorted(one) == sorted(other)


def _example(before: Sequence[Score | None], after: Sequence[Score | None]) -> str:
    def told(score: Score | None) -> str:
        return "no score" if score is None else f"{score.total:.4g}"

    a, b = next((a, b) for a, b in zip(before, after, strict=True) if not same(a, b))
    return f"{told(a)}, then {told(b)}"


@contextlib.contextmanager
def _other_random_numbers() -> Iterator[None]:
    """Seed every global generator otherwise inside."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 - the global one is kept
    random.seed(20_240_229)
    np.random.seed(20_240_229)  # noqa: NPY002 - rewards may draw from it
    torch.manual_seed(20_240_229)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002 - restored
        torch.set_rng_state(states[2])


class _LaterDate(dt.date):
    """Today is another day."""

    @classmethod
    def today(cls) -> _LaterDate:
        """Return the shifted day."""
        return cls.fromtimestamp(time.time())


class _LaterTime(dt.datetime):
    """Now is another time."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> _LaterTime:
        """Return the shifted time."""
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> _LaterTime:
        """Return the shifted time, without a zone."""
        return cls.fromtimestamp(time.time(), dt.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> _LaterTime:
        """Return the shifted time."""
        return cls.now()


@contextlib.contextmanager
def _later() -> Iterator[None]:
    """Put the clock forward inside, for code that is not a library's: a reward function and what it imports."""
    real = {name: getattr(time, name) for name in ("time", "time_ns", "localtime", "gmtime")}
    later: dict[str, Callable[..., Any]] = {
        "time": lambda: real["time"]() + LATER_S,
        "time_ns": lambda: real["time_ns"]() + int(LATER_S * 1e9),
        "localtime": lambda seconds=None: real["localtime"](time.time() if seconds is None else seconds),
        "gmtime": lambda seconds=None: real["gmtime"](time.time() if seconds is None else seconds),
    }
    swaps: dict[int, Any] = {id(real[name]): later[name] for name in real}
    swaps |= {id(dt.datetime): _LaterTime, id(dt.date): _LaterDate}
    changed = [(time, name, real[name], later[name]) for name in real]
    changed += [(dt, "datetime", dt.datetime, _LaterTime), (dt, "date", dt.date, _LaterDate)]
    for module in _own_modules():
        attributes = [(name, value) for name, value in list(vars(module).items()) if id(value) in swaps]
        changed += [(module, name, value, swaps[id(value)]) for name, value in attributes]
    for owner, name, _, new in changed:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, old, _ in changed:
            setattr(owner, name, old)


def _own_modules() -> list[Any]:
    """Modules that are neither Python's nor installed packages, nor this one."""
    paths = sysconfig.get_paths()
    libraries = tuple(paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    modules = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not file.startswith(libraries) and module.__name__ != __name__:
            modules.append(module)
    return modules


async def _replay(task: Task, prompt: Prompt, tokens: Callable[[str], str]) -> tuple[float | None, float | None]:
    """Play a prompt's perfect episode, and once more with answers that have been tokens in between."""
    if task.demonstrates:
        answers = [answer for _, answer in await task.demonstrate(prompt)]
    else:
        answers = list(task.oracle(prompt) or ())
    if not answers:
        return None, None
    first = await play(task, prompt, answers)
    return first, await play(task, prompt, [tokens(answer) for answer in answers])


def _of_episodes(context: PreflightContext, name: str, task: Task) -> Iterator[Check]:
    """Perfect episodes get the same reward when they are played again, their answers written as tokens."""
    prompts = context.prompts[name][:PLAYED]

    def tokens(text: str) -> str:
        return context.codec.decode(context.collector().completion_ids(prompts[0], text))

    async def all_of_them() -> list[tuple[float | None, float | None]]:
        return [await _replay(task, prompt, tokens) for prompt in prompts]

    pairs = [(a, b) for a, b in context.loop.run(all_of_them()) if a is not None and b is not None]
    off = [(a, b) for a, b in pairs if abs(a - b) > 1e-9]
    evidence = {"episodes": len(pairs), "rewards": [list(pair) for pair in pairs]}
    wrong = None
    if off:
        wrong = (
            f"{len(off)} of {len(pairs)} perfect episodes get another reward when they are played again with the same "
            f"actions, written as tokens: {off[0][0]:.4g}, then {off[0][1]:.4g}"
        )
    fix = "let an episode depend on its prompt's seed and its actions alone"
    yield judged(f"rewards/steady/{name}", wrong, f"{len(pairs)} episodes get the same reward again", evidence, fix)
