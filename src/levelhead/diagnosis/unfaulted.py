"""What is said of a run in which no fault was found: healthy, learning at a cost, or too little to tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors.base import Evidence, Reading, View
from levelhead.diagnosis.detectors.improvement import gaps_over_constant, over_constant
from levelhead.diagnosis.trend import ends

VERDICTS = ("healthy", "learns", "undecided")
"""Verdicts on runs without a fault, and the findings that say why."""
LEAST_ROWS = 8
"""Readings of an outcome below which nothing is called healthy."""

# Set by hand on the development logs (docs/doctor.md), unless a line says otherwise.
# A range begins where nothing counts and ends where all does.
_RISEN = 0.3  # strength of a rise that is one
_HIGH = 0.5  # how surely a reward stands high
_BASE = 0.62  # confidence in health that eight rows give,
_ROWS = 0.14  # what many rows add,
_ROWS_RANGE = (8, 60)
_LEARNED = 0.1  # what a rise adds,
_JUDGED = 0.1  # and what a score adds that judges the outcome and rises too
_DOUBT = 0.6  # part of the strongest doubt that is taken away
_UNDECIDED = 0.5  # even odds
_NEARLY_EVEN = 0.42  # confidence of a doubt that leaves the verdict open
_LOW = 0.15  # share of the known maximum at which a reward is still low,
_LEAST_GAIN = 0.03  # and the share that a gain must be to count
_CUT = 0.3  # share of cut answers that is a cost,
_CUT_GREW = 0.1  # where it has grown by so much
_DEAD = 0.6  # share of groups without contrast that is a cost
_ENTROPY_LEFT = 0.4  # share of the first entropy that is left
_SOLVED = 0.9  # nearness to the top from which the task is solved,
_MOSTLY = 0.6  # where so many readings stand there


@dataclass(frozen=True, slots=True)
class Sound:
    """A verdict on a run without a fault.

    Attributes:
        code: The finding that it is named after.
        confidence: Probability that the run is sound; 0.5 where that is not decided.
        readings: First and last reading of the outcome, where there are any.
        evidence: What decides it, or what is missing.
    """

    code: Literal["healthy", "learns", "undecided"]
    confidence: float
    readings: tuple[Reading, ...]
    evidence: tuple[Evidence, ...]


def without_fault(view: View, doubt: float) -> Sound:
    """Return the verdict on a run in which no finding is more likely than not.

    Args:
        view: The run.
        doubt: Confidence of the likeliest finding, between 0 and 1.
    """
    trend = view.reward_trend
    outcome = max((view.history.series(name) for name in (trend.source, *trend.held_out)), key=len)
    readings = tuple(
        Reading(outcome.name, outcome.steps[i], outcome.values[i])
        for i in sorted({0, len(outcome) - 1})
        if len(outcome)
    )
    missing = _missing(view, len(outcome), doubt)
    if missing:
        return Sound("undecided", _UNDECIDED, readings, (missing,))
    judged = any(t.rise > _RISEN for t in (*trend.held_out.values(), *trend.task_scores.values()))
    sure = _BASE + _ROWS * stats.ramp(len(outcome), *_ROWS_RANGE) + _LEARNED * trend.learned + _JUDGED * judged
    confidence = round(sure * (1 - _DOUBT * doubt), 4)
    evidence = [Evidence(1.0, "nothing-wrong", {"rows": view.rows})]
    if trend.learned > _RISEN:
        evidence.append(Evidence(trend.learned, "reward-rises", {}))
    costs = _costs(view)
    return Sound("learns" if costs else "healthy", confidence, readings, (*evidence, *costs))


def _missing(view: View, outcomes: int, doubt: float) -> Evidence | None:
    """What keeps a run from being called healthy; ``None`` where nothing does."""
    trend = view.reward_trend
    gain, top = trend.reward.late - trend.reward.early, trend.top or 0.0
    outside = (*trend.held_out.values(), *trend.task_scores.values())
    if not outcomes:
        return Evidence(1.0, "no-outcome", {"rows": view.rows})
    if outcomes < LEAST_ROWS:
        return Evidence(1.0, "few-outcomes", {"rows": outcomes})
    if trend.learned <= _RISEN and trend.holds < _HIGH:
        return Evidence(1.0, "no-rise-yet", {"early": trend.reward.early, "late": trend.reward.late, "rows": outcomes})
    if trend.reward.late < _LOW * top and gain < _LEAST_GAIN * top and not any(t.rise > _RISEN for t in outside):
        return Evidence(1.0, "hardly-risen", {"early": trend.reward.early, "late": trend.reward.late, "top": top})
    if doubt >= _NEARLY_EVEN:
        return Evidence(1.0, "doubt-stands", {"doubt": doubt})
    for task, gap, error, _ in gaps_over_constant(view.history):
        if over_constant(gap, error) == "undecided":
            return Evidence(1.0, "unclear-over-constant", {"task": task, "gap": gap.values[-1], "error": error})
    return None


def _costs(view: View) -> list[Evidence]:
    """What the run pays for its rise: cut answers, groups without contrast, entropy, or nothing left to learn."""
    found = []
    cut, dead, entropy = view.series(metric.CLIPPED_RATIO), view.dead, view.entropy
    if len(cut) >= LEAST_ROWS:
        early, late = ends(cut)
        if late >= _CUT and late - early >= _CUT_GREW:
            found.append(Evidence(-1.0, "costs-cut", {"early": early, "late": late}))
    if len(dead) >= LEAST_ROWS and (late := stats.mean(dead.values[-stats.edge(len(dead)) :])) >= _DEAD:
        found.append(Evidence(-1.0, "costs-contrast", {"late": late}))
    if len(entropy) >= LEAST_ROWS:
        early, late = ends(entropy)
        if late < _ENTROPY_LEFT * early:
            found.append(Evidence(-1.0, "costs-entropy", {"early": early, "late": late}))
    reward, top = view.series(metric.REWARD, view.reward_trend.source), view.reward_trend.top
    at_top = bool(top) and sum(value >= _SOLVED * (top or 0.0) for value in reward.values) > _MOSTLY * len(reward)
    if view.reward_trend.near_top >= _SOLVED and (found or at_top):
        found.append(Evidence(-1.0, "solved", {"late": view.reward_trend.reward.late}))
    return found
