"""What the detectors have to say of one log, as features: an argument's weight is how strong it is, by its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import doctor_accuracy as accuracy

from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors import DETECTORS, Candidate, View
from levelhead.diagnosis.findings import CATALOGUE
from levelhead.diagnosis.ranking import too_fast
from levelhead.doctor.readers.sources import Log, read
from levelhead.doctor.report import OF_A_SUMMARY

COLUMNS = ("reward", "kl", "entropy", "grad_norm", "completions/mean_length", "completions/clipped_ratio")
CONTEXT = ("learned", "lost", "near-top", "holds", "rows", "late-start", *(f"no-{name}" for name in COLUMNS))
"""Features that are no argument of a finding: what became of the reward, how much was shown, and what was not."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One candidate finding as features.

    Attributes:
        code: The finding.
        arguments: Weight by key, weights of one key added up.
        severity: As the detector and the catalogue have it.
        first_step: First bad step.
        trust: What is left of a confidence in it for how its columns were read.
    """

    code: str
    arguments: Mapping[str, float]
    severity: str
    first_step: float | None
    trust: float = 1.0


@dataclass(frozen=True, slots=True)
class Features:
    """All that is asked of one log.

    Attributes:
        heard: Candidate findings.
        context: Features of the log as a whole.
        checklist: What a list of fixed thresholds says of it.
    """

    heard: tuple[Heard, ...]
    context: Mapping[str, float]
    checklist: tuple[str, ...] = ()


def features_of(path: Path) -> Features:
    """Read a log and ask every detector."""
    log = read(path)
    view = View(log.history, log.events)
    candidates = [s for detector in DETECTORS for s in detector.examine(view)]
    candidates += too_fast(candidates, view)
    best: dict[str, Candidate] = {}
    for candidate in candidates:
        if candidate.evidence and (candidate.code not in best or candidate.log_odds > best[candidate.code].log_odds):
            best[candidate.code] = candidate
    listed, _ = accuracy.checklist(view)
    return Features(tuple(_heard(candidate, log) for candidate in best.values()), _context(view), listed)


def _heard(candidate: Candidate, log: Log) -> Heard:
    arguments: dict[str, float] = {}
    for argument in candidate.evidence:
        arguments[argument.key] = arguments.get(argument.key, 0.0) + argument.weight
    metrics = {reading.metric for reading in candidate.readings}
    trust = min((log.guesses[m][1] for m in metrics if m in log.guesses), default=1.0)
    trust *= OF_A_SUMMARY if metrics & log.summary.keys() else 1.0
    severity = candidate.severity or CATALOGUE[candidate.code].severity
    return Heard(candidate.code, arguments, severity, candidate.first_step, trust)


def _context(view: View) -> dict[str, float]:
    trend = view.reward_trend
    context = {
        "learned": trend.learned,
        "lost": trend.lost,
        "near-top": trend.near_top,
        "holds": trend.holds,
        "rows": stats.ramp(stats.log10(max(view.rows, 1)), 0.0, 2.5),
        "late-start": float(not view.from_start),
    }
    return context | {f"no-{name}": float(not len(view.series(name))) for name in COLUMNS}


def keys_of(cases: Sequence[Features], code: str) -> list[str]:
    """Arguments of a finding that occur, in order."""
    return sorted({key for case in cases for h in case.heard if h.code == code for key in h.arguments})
