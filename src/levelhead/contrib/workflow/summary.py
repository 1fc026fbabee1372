"""Metrics of scored workflow rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from levelhead.contrib.workflow.analysis import census
from levelhead.contrib.workflow.problems.base import DOMAINS
from levelhead.metrics import held_out
from levelhead.records import Score


def summarize(scores: Sequence[Score]) -> Mapping[str, float]:
    """Return the metrics of some scored rollouts; one that has no rollouts to be taken over is absent.

    ``accuracy`` (share of right answers, fallbacks counted as wrong) and ``accuracy/DOMAIN``; ``fallback`` and
    ``normalised``, shares of the answers; over valid workflows ``tokens`` and ``calls`` (means), ``unique`` (share of
    different workflows), ``workflow_entropy`` (nats) and ``structure/CLASS``; ``expected_reward`` (mean of the exact
    expectations, fallbacks at their reward), in the simulator.
    """
    if not scores:
        return {}
    values = {held_out.ACCURACY: fmean(map(_right, scores))}
    for domain in DOMAINS:
        here = [_right(score) for score in scores if score.info["domain"] == domain]
        if here:
            values[held_out.ACCURACY_OF.of(domain)] = fmean(here)
    workflow_census = census(score.info["workflow"] for score in scores)
    valid = [score for score in scores if score.valid]
    values[held_out.FALLBACK] = workflow_census.fallback
    values[held_out.NORMALISED] = fmean(bool(score.info.get("repairs")) for score in scores)
    if all("expected" in score.info for score in valid):
        values[held_out.EXPECTED_REWARD] = fmean(
            score.info["expected"] if score.valid else score.total for score in scores
        )
    if valid:
        values[held_out.TOKENS] = fmean(score.info["tokens"] for score in valid)
        values[held_out.CALLS] = fmean(score.info["calls"] for score in valid)
        values[held_out.UNIQUE] = workflow_census.unique / workflow_census.valid
        values[held_out.WORKFLOW_ENTROPY] = workflow_census.entropy
        values |= {held_out.STRUCTURE.of(name): share for name, share in workflow_census.structures.items()}
    return values


def _right(score: Score) -> float:
    return float(score.parts["correctness"] == 1.0)
