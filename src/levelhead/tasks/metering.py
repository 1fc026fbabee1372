"""What calls to models have cost, and what judges and reward functions have done, step by step."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from levelhead import metrics as metric
from levelhead.metrics import judging

LATENCIES = 10_000
"""Times of calls that are kept until somebody takes them."""
NEWS = 16
"""Lines of news that are kept until somebody takes them; of more, only how many."""


@dataclass(slots=True)
class Calls:
    """What calls to an endpoint have cost.

    Attributes:
        calls: Replies that came from the endpoint, each counted once, however often it had to be asked.
        cached: Replies that came from the cache.
        retries: Attempts that failed and were repeated.
        throttled: Those among them that the endpoint refused as too many (429).
        prompt_tokens: Tokens read, over all that the endpoint answered, replies that were of no use included.
        completion_tokens: Tokens written, likewise.
        estimated: Replies whose tokens the endpoint did not count.
        latencies: Seconds from sending a call to its reply, retries and their waits included.
    """

    calls: int = 0
    cached: int = 0
    retries: int = 0
    throttled: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0
    latencies: list[float] = field(default_factory=list, compare=False)

    @property
    def tokens(self) -> int:
        """Tokens over all replies of the endpoint."""
        return self.prompt_tokens + self.completion_tokens

    def counts(self) -> dict[str, int]:
        """Return the numbers by name, without the latencies."""
        return {name: getattr(self, name) for name in COUNTS}

    def since(self, before: Mapping[str, int]) -> dict[str, Any]:
        """Return what has been added to :meth:`counts` since they were ``before``, by name."""
        return {name: value - before.get(name, 0) for name, value in self.counts().items()}


COUNTS = tuple(one.name for one in fields(Calls) if one.name != "latencies")
"""Names of the numbers of :class:`Calls`."""

_SUMS = ("verdicts", "failures", "pairs", "turned", "ties")
"""Further numbers of :class:`JudgeUse` that add up."""
_COUNT_NAMES = {
    "calls": judging.CALLS,
    "cached": judging.CACHED,
    "retries": judging.RETRIES,
    "throttled": judging.THROTTLED,
    "prompt_tokens": judging.PROMPT_TOKENS,
    "completion_tokens": judging.COMPLETION_TOKENS,
    "estimated": judging.ESTIMATED,
}


@dataclass(slots=True)
class Usage(Calls):
    """What calls have cost since the executor was made, and what is going on.

    Attributes:
        attempts: Requests that may have reached the endpoint, whatever came of them.
        news: What a person should know of the endpoint, in order, until :meth:`take_news`.
        unsaid: Lines of news beyond those that are kept.
    """

    attempts: int = field(default=0, compare=False)
    news: list[str] = field(default_factory=list)
    unsaid: int = 0

    def tell(self, line: str) -> bool:
        """Add a line of news; returns whether there was room for it."""
        if len(self.news) >= NEWS:
            self.unsaid += 1
            return False
        self.news.append(line)
        return True

    def took(self, seconds: float) -> None:
        """Add a call's time; the newest are kept."""
        self.latencies = [*self.latencies, seconds][-LATENCIES:]

    def take_news(self) -> list[str]:
        """Return the news since the last call."""
        news, unsaid = self.news, self.unsaid
        self.news, self.unsaid = [], 0
        return [*news, f"{unsaid} more lines like these"] if unsaid else news


@dataclass(slots=True)
class JudgeUse(Calls):
    """What a judge has done since it was last asked about, and what its calls have cost.

    Attributes:
        verdicts: Answers that it was to grade.
        failures: Those that came back without a grade.
        cost: Of its tokens, at the recipe's prices; ``None`` where it gives none.
        grades: Sum of the grades, of a judge among others.
        down: Whether a judge among others is left alone after it failed.
        drift: Change of its mean grade on the anchors, where they have just been asked about.
        spread: Sum of the standard deviations of a panel's grades, and of how many answers.
        pairs: Pairs of answers that judges compared, equal ones left out.
        turned: Those among them that a judge decided otherwise when they changed places.
        ties: Those that are ties, the turned ones included.
        judges: The same of each judge, where there are several.
    """

    verdicts: int = 0
    failures: int = 0
    cost: float | None = None
    grades: float = 0.0
    down: bool = False
    drift: float | None = None
    spread: tuple[float, int] = (0.0, 0)
    pairs: int = 0
    turned: int = 0
    ties: int = 0
    judges: dict[str, JudgeUse] = field(default_factory=dict)

    def __add__(self, other: JudgeUse) -> JudgeUse:
        """Return the sums of both."""
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        counts: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in (*COUNTS, *_SUMS)}
        return JudgeUse(
            **counts,
            latencies=[*self.latencies, *other.latencies],
            cost=sum(costs) if costs else None,
            grades=self.grades + other.grades,
            down=other.down,
            drift=self.drift if other.drift is None else other.drift,
            spread=(self.spread[0] + other.spread[0], self.spread[1] + other.spread[1]),
            judges=merge(self.judges, other.judges),
        )


@dataclass(slots=True)
class RewardTally:
    """What the reward functions of a task have done since they were last asked about.

    Attributes:
        answers: Those that they were to rate.
        dropped: Those among them that were left out, since a function could not rate them.
        drops: Whether the recipe leaves such answers out; it stops the run otherwise.
        by: How many of the dropped ones each function could not rate.
        error: What was wrong with the last one, in one line.
        logged: Sum and number of the values under each name that functions logged as metrics.
    """

    answers: int = 0
    dropped: int = 0
    drops: bool = False
    by: Counter[str] = field(default_factory=Counter)
    error: str = ""
    logged: dict[str, tuple[float, int]] = field(default_factory=dict)

    def __add__(self, other: RewardTally) -> RewardTally:
        """Return the sums of both."""
        whole = RewardTally(
            self.answers + other.answers,
            self.dropped + other.dropped,
            self.drops or other.drops,
            self.by + other.by,
            other.error or self.error,
            dict(self.logged),
        )
        for name, (value, count) in other.logged.items():
            whole.log(name, value, count)
        return whole

    def log(self, name: str, value: float, count: int = 1) -> None:
        """Take a logged value, or a sum of several; those that are no numbers do not count, as in TRL."""
        before, n = self.logged.get(name, (0.0, 0))
        self.logged[name] = (before, n) if math.isnan(value) else (before + value, n + count)

    def means(self) -> dict[str, float]:
        """Return the mean of what was logged under each name; a name without a number is absent."""
        return {name: value / count for name, (value, count) in self.logged.items() if count}


_ACCOUNT: ContextVar[dict[int, RewardTally] | None] = ContextVar("levelhead_account", default=None)


@contextmanager
def own_account() -> Iterator[None]:
    """Keep what reward functions do inside apart from what they do elsewhere at the same time.

    Inside, :meth:`Task.drain_tally` returns what was done inside; what is left there at the end is forgotten.
    """
    token = _ACCOUNT.set({})
    try:
        yield
    finally:
        _ACCOUNT.reset(token)


def open_account() -> dict[int, RewardTally] | None:
    """Tallies of the account that is open, by the ``id`` of their task; ``None`` outside :func:`own_account`."""
    return _ACCOUNT.get()


def error_metrics(tallies: Mapping[str, RewardTally]) -> dict[str, float]:
    """Return the share of answers that rewards failed on, over the tasks whose recipe leaves such answers out.

    Args:
        tallies: Of a step, by task.  Where several such tasks had answers each has a share of its own.
    """
    rated = {task: tally for task, tally in tallies.items() if tally.drops and tally.answers}
    if not rated:
        return {}
    whole = sum(rated.values(), RewardTally())
    shares = {metric.REWARD_ERRORS_BY_TASK.of(task): tally for task, tally in rated.items() if len(rated) > 1}
    return {name: tally.dropped / tally.answers for name, tally in {metric.REWARD_ERRORS: whole, **shares}.items()}


def logged_metrics(tallies: Mapping[str, RewardTally], taken: Collection[str] = ()) -> dict[str, float]:
    """Return what reward functions logged, under the names that they gave.

    A name that several tasks logged has the mean over all of them, and ``<name>/<task>`` beside it.

    Args:
        tallies: By task.
        taken: Names that mean something else; what is logged under one of them is called ``logged/<name>``.
    """
    whole = sum(tallies.values(), RewardTally()).means()
    for name in list(whole):
        theirs = {task: means[name] for task, tally in tallies.items() if name in (means := tally.means())}
        if len(theirs) > 1:
            whole |= {f"{name}/{task}": mean for task, mean in theirs.items()}
    return {metric.LOGGED.of(name) if name in taken else name: mean for name, mean in whole.items()}


_Sum = TypeVar("_Sum", JudgeUse, RewardTally)


def merge(one: Mapping[str, _Sum], other: Mapping[str, _Sum]) -> dict[str, _Sum]:
    """Return the use, or the tallies, of both, by task."""
    return {**one, **{task: one[task] + more if task in one else more for task, more in other.items()}}


def use_metrics(uses: Mapping[str, JudgeUse]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the metrics of a step: those that a seed fixes, and those that differ between two runs of one seed.

    Names are ``judge/...`` over all judges, and ``judge/.../<task>`` as well where there are several.  What was asked
    depends on the answers alone.  What that cost depends on what the cache holds, on the network and the clock.

    Args:
        uses: By task; empty where no task has a judge.
    """
    values: dict[str, float] = {}
    timings: dict[str, float] = {}
    if not uses:
        return values, timings
    total = sum(uses.values(), JudgeUse())
    for task, use in [(None, total), *((task, use) for task, use in uses.items() if len(uses) > 1)]:
        fixed = {judging.VERDICTS: float(use.verdicts), judging.FAILURES: float(use.failures)}
        if use.verdicts:
            fixed[judging.FAILURE_RATE] = use.failures / use.verdicts
        paid = _paid(use)
        if use.spread[1]:
            paid[judging.DISAGREEMENT] = use.spread[0] / use.spread[1]
        values |= {_of_task(name, task): value for name, value in fixed.items()}
        timings |= {_of_task(name, task): value for name, value in paid.items()}
    for task, use in uses.items():
        for title, one in use.judges.items():
            timings |= {judging.OF.of(f"{task}.{title}", name): value for name, value in _of_judge(one).items()}
    return values, timings


def _paid(use: JudgeUse) -> dict[str, float]:
    """What depends on the cache, the network and the clock, by metric."""
    paid = {_COUNT_NAMES[name]: float(value) for name, value in use.counts().items()}
    if use.cost is not None:
        paid[judging.COST] = use.cost
    if use.pairs:
        paid |= {judging.TURNED: use.turned / use.pairs, judging.TIES: use.ties / use.pairs}
    if use.latencies:
        paid[judging.LATENCY_MEDIAN] = statistics.median(use.latencies)
        paid[judging.LATENCY_P95] = quantile(use.latencies, 0.95)
    return paid


def _of_judge(use: JudgeUse) -> dict[str, float]:
    """The numbers of one judge among others, by their last name."""
    prefix = judging.BY_TASK.prefix
    numbers = {name.removeprefix(prefix): value for name, value in _paid(use).items()}
    numbers |= {"verdicts": float(use.verdicts), "failures": float(use.failures), "down": float(use.down)}
    if use.verdicts > use.failures:
        numbers["grade"] = use.grades / (use.verdicts - use.failures)
    if use.drift is not None:
        numbers["drift"] = use.drift
    return numbers


def _of_task(name: str, task: str | None) -> str:
    """A judge metric's name, or that of the same number of one task."""
    return name if task is None else judging.BY_TASK.of(name.removeprefix(judging.BY_TASK.prefix), task)


def quantile(values: list[float], share: float) -> float:
    """Return the value below which a share of the values lies, linearly interpolated (numpy's default)."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
