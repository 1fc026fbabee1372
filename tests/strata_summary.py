"""A ``summary.json`` with strata and constant answers: one task has learnt to read, the other one sentence."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

ABSTAIN = "Evidence: none\nAnswer: unknown"
"""The answer that the second task's policy gives to everything."""

Part = tuple[float, float, dict[str, float]]


def stage(
    score: tuple[float, float],
    strata: Mapping[str, Part],
    constant: tuple[str, float, float],
    over: tuple[float, float],
    balanced: tuple[float, float] | None = None,
    metrics: Mapping[str, float] | None = None,
    validity: float = 0.98,
    length: float = 24.0,
) -> dict[str, Any]:
    """One stage of a task: scores are (mean, standard error), strata (mean, standard error, metrics)."""
    text, value, error = constant
    even = balanced or (sum(part[0] for part in strata.values()) / max(len(strata), 1), score[1])
    return {
        "score": score[0],
        "se": score[1],
        "validity": validity,
        "length": length,
        "n": 512,
        "metrics": dict(metrics or {}),
        "balanced": {"score": even[0], "se": even[1]},
        "constant": {"answer": text, "score": value, "se": error},
        "over_constant": {"score": over[0], "se": over[1]},
        "strata": {
            name: {"score": value, "se": error, "n": 256, "metrics": dict(numbers)}
            for name, (value, error, numbers) in strata.items()
        },
    }


def _fairness(ambig: float, disambig: float, se: float, **more: Any) -> dict[str, Any]:
    strata: dict[str, Part] = {
        "condition=ambig": (2 * ambig - 1, se, {"accuracy": ambig}),
        "condition=disambig": (2 * disambig - 1, 1.2 * se, {"accuracy": disambig}),
    }
    mean = ambig + disambig - 1
    constant = ("C. Cannot be determined.", -0.02, 0.031)
    bias = {"bias/s_AMB": 0.2 * (1 - ambig), "bias/s_DIS": 0.3 * (1 - disambig), "accuracy/Age": 0.8 * disambig}
    return stage((mean, se), strata, constant, (mean + 0.02, 1.1 * se), metrics=bias, **more)


def _faithfulness(exact: float, quoted: float, yes: float, no: float, se: float, **more: Any) -> dict[str, Any]:
    strata: dict[str, Part] = {
        "answerable=yes": (
            2 * exact - 1 - 0.1 * yes,
            se,
            {"exact_match": exact, "quoted": quoted, "abstained": yes},
        ),
        "answerable=no": (2 * no - 1, se, {"abstained": no}),
    }
    mean = (strata["answerable=yes"][0] + strata["answerable=no"][0]) / 2
    metrics = {"exact": exact, "quoted": quoted}
    return stage((mean, se), strata, (ABSTAIN, -0.08, 0.04), (mean + 0.08, 0.8 * se), metrics=metrics, **more)


READS = "The balanced score rose from -0.01 to +0.69, above every constant answer; no stratum has fallen."
RECITES = (
    "Not improved: better only where the answer is 'unknown'; answerable questions fell from 18% to 0%. "
    "Always writing 'Evidence: none / Answer: unknown' scores as much."
)

SUMMARY: dict[str, Any] = {
    "tasks": {
        "fairness": {
            "start": _fairness(0.01, 0.02, 0.008, validity=0.02, length=63.5),
            "sft": _fairness(0.51, 0.48, 0.041, validity=0.93, length=27.2),
            "grpo": _fairness(0.91, 0.78, 0.032, validity=0.99, length=23.4),
            "verdict": {"improved": True, "text": READS},
        },
        "faithfulness": {
            "start": _faithfulness(0.0, 0.0, 0.0, 0.0, 0.004, validity=0.01, length=64.0),
            "sft": _faithfulness(0.18, 0.16, 0.18, 0.31, 0.04, validity=0.92, length=28.0),
            "grpo": _faithfulness(0.0, 0.0, 0.99, 1.0, 0.03, validity=1.0, length=9.0),
            "verdict": {"improved": False, "text": RECITES},
        },
    },
    "seconds": 533.0,
}


def summary() -> dict[str, Any]:
    """A copy that may be changed."""
    return copy.deepcopy(SUMMARY)


def older() -> dict[str, Any]:
    """The same as a version wrote it that knew neither strata nor constant answers."""
    plain = summary()
    for stages in plain["tasks"].values():
        stages.pop("verdict")
        for result in stages.values():
            for name in ("balanced", "constant", "over_constant", "strata"):
                result.pop(name)
    return plain


def many_strata(n: int) -> dict[str, Any]:
    """A task of many kinds of problem, such as the pages of the browser task."""
    strata: dict[str, Part] = {f"page=click-number-{i}": (i / n, 0.1, {"success": i / n}) for i in range(n)}
    results = {name: stage((0.5, 0.05), strata, ("click(0)", 0.1, 0.02), (0.4, 0.04)) for name in ("sft", "grpo")}
    return {"tasks": {"browser": {**results, "verdict": {"improved": True, "text": "Improved."}}}, "seconds": 60.0}
