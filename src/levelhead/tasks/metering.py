"""What judges have done and cost, step by step."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(slots=True)
class JudgeUse:
    """What a judge has done since it was last asked about.

    Attributes:
        verdicts: Answers that it was to grade.
        failures: Those that came back without a grade.
        calls: Replies of the endpoint.
        cached: Replies from the cache.
        retries: Attempts that failed and were repeated.
        prompt_tokens: Tokens read, over the endpoint's replies.
        completion_tokens: Tokens written, over the endpoint's replies.
        cost: Of those tokens, at the recipe's prices; ``None`` where it gives none.
        latencies: Seconds of each call, retries included.
    """

    verdicts: int = 0
    failures: int = 0
    calls: int = 0
    cached: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    latencies: list[float] = field(default_factory=list)

    def __add__(self, other: JudgeUse) -> JudgeUse:
        """Return both together."""
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return JudgeUse(
            self.verdicts + other.verdicts,
            self.failures + other.failures,
            self.calls + other.calls,
            self.cached + other.cached,
            self.retries + other.retries,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            sum(costs) if costs else None,
            [*self.latencies, *other.latencies],
        )


@runtime_checkable
class Metered(Protocol):
    """A task that pays for its scores."""

    def drain_use(self) -> JudgeUse:
        """Return what was done since the last call."""
        ...


def merge(one: Mapping[str, JudgeUse], other: Mapping[str, JudgeUse]) -> dict[str, JudgeUse]:
    """Return the use of both, by task."""
    return {task: one.get(task, JudgeUse()) + other.get(task, JudgeUse()) for task in {**one, **other}}


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
    for suffix, use in [("", total), *((f"/{task}", use) for task, use in uses.items() if len(uses) > 1)]:
        values |= {f"judge/{name}{suffix}": float(getattr(use, name)) for name in ("verdicts", "failures")}
        if use.verdicts:
            values[f"judge/failure_rate{suffix}"] = use.failures / use.verdicts
        timings |= {
            f"judge/{name}{suffix}": float(getattr(use, name))
            for name in ("calls", "cached", "retries", "prompt_tokens", "completion_tokens")
        }
        if use.cost is not None:
            timings[f"judge/cost{suffix}"] = use.cost
        if use.latencies:
            timings[f"judge/latency_median{suffix}"] = statistics.median(use.latencies)
            timings[f"judge/latency_p95{suffix}"] = quantile(use.latencies, 0.95)
    return values, timings


def quantile(values: list[float], share: float) -> float:
    """Return the value below which a share of the values lies, linearly interpolated (numpy's default)."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
