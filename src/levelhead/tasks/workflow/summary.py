"""Metrics of scored workflow rollouts, and which workflow a policy chooses where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from levelhead.records import Score
from levelhead.tasks.workflow.problems.base import DIFFICULTIES, DOMAINS
from levelhead.watch.workflows import Census, census


def summarize(scores: Sequence[Score]) -> Mapping[str, float]:
    """Return the metrics of some scored rollouts; one that has no rollouts to be taken over is absent.

    ``accuracy`` (share of right answers, fallbacks counted as wrong) and ``accuracy/DOMAIN``; ``fallback`` and
    ``normalised``, shares of the answers; over valid workflows ``tokens`` and ``calls`` (means), ``unique`` (share of
    different workflows), ``workflow_entropy`` (nats) and ``structure/CLASS``; ``expected_reward`` (mean of the exact
    expectations, fallbacks at their reward), in the simulator.
    """
    if not scores:
        return {}
    values = {"accuracy": fmean(map(_right, scores))}
    for domain in DOMAINS:
        here = [_right(score) for score in scores if score.info["domain"] == domain]
        if here:
            values[f"accuracy/{domain}"] = fmean(here)
    found = census(score.info["workflow"] for score in scores)
    valid = [score for score in scores if score.valid]
    values["fallback"] = found.fallback
    values["normalised"] = fmean(bool(score.info.get("repairs")) for score in scores)
    if all("expected" in score.info for score in valid):
        values["expected_reward"] = fmean(score.info["expected"] if score.valid else score.total for score in scores)
    if valid:
        values["tokens"] = fmean(score.info["tokens"] for score in valid)
        values["calls"] = fmean(score.info["calls"] for score in valid)
        values["unique"] = found.unique / found.valid
        values["workflow_entropy"] = found.entropy
        values |= {f"structure/{name}": share for name, share in found.structures.items()}
    return values


@dataclass(frozen=True, slots=True)
class Choice:
    """What a policy chooses for one class of problems.

    Attributes:
        domain: The class's domain.
        difficulty: The class's difficulty.
        answers: Census of its answers there.
        reward: Mean reward.
        accuracy: Share of right answers.
        tokens: Mean tokens of valid workflows; ``None`` where there is none.
    """

    domain: str
    difficulty: str
    answers: Census
    reward: float
    accuracy: float
    tokens: float | None


def choices(scores: Sequence[Score]) -> list[Choice]:
    """Return the table of what a policy chooses per domain and difficulty, and what that costs."""
    groups: dict[tuple[str, str], list[Score]] = defaultdict(list)
    for score in scores:
        groups[score.info["domain"], score.info["difficulty"]].append(score)
    places = [(domain, difficulty) for domain in DOMAINS for difficulty in DIFFICULTIES]
    return [
        _choice(domain, difficulty, groups[domain, difficulty])
        for domain, difficulty in places
        if (domain, difficulty) in groups
    ]


def _choice(domain: str, difficulty: str, scores: Sequence[Score]) -> Choice:
    used = [score.info["tokens"] for score in scores if score.valid]
    return Choice(
        domain,
        difficulty,
        census(score.info["workflow"] for score in scores),
        fmean(score.total for score in scores),
        fmean(map(_right, scores)),
        fmean(used) if used else None,
    )


def _right(score: Score) -> float:
    return float(score.parts["correctness"] == 1.0)
