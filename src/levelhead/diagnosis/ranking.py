"""From suspicions to a diagnosis: what explains what, how sure that is, and what the verdict comes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors import DETECTORS, Detector, Suspicion, View
from levelhead.diagnosis.detectors.base import Clue, Reading
from levelhead.diagnosis.findings import CATALOGUE
from levelhead.diagnosis.history import History
from levelhead.records import Severity

# Confidence = sigmoid(SLOPE * log-odds + SHIFT): Platt scaling (Platt 1999), fitted by bench/doctor_accuracy.py --fit.
SLOPE = 1.0
SHIFT = 0.38

REPORTED_AT = -1.4
"""Findings of lower log-odds are left out."""
SICK_AT = -SHIFT / SLOPE
"""A finding from these log-odds on (more likely than not, calibrated), and worse than ``info``, makes the run sick."""
CRITICAL_AT = 0.6
"""A critical finding of lower log-odds is a warning."""

_INSTABILITY = (
    "kl-blowup",
    "gradient-spike",
    "entropy-collapse",
    "entropy-explosion",
    "catastrophic-update",
    "length-collapse",
    "update-collapse",
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One entry of a diagnosis.

    Attributes:
        code: Entry of the catalogue.
        severity: How bad it is here.
        confidence: Calibrated probability that it is right.
        first_step: First bad step; ``None`` where no step can be named.
        readings: Rows that show it.
        clues: Arguments for and against.
        explains: Codes of other findings that follow from this one.
    """

    code: str
    severity: Severity
    confidence: float
    first_step: float | None
    readings: tuple[Reading, ...]
    clues: tuple[Clue, ...]
    explains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is the matter with a run.

    Attributes:
        verdict: ``healthy``, ``warning`` or ``critical``.
        findings: Best explanation first; ``healthy`` stands first in a healthy run.
        rows: Rows of the run.
    """

    verdict: Severity | str
    findings: tuple[Finding, ...]
    rows: int


def diagnose(
    history: History, detectors: Sequence[Detector] = DETECTORS, events: Sequence[Mapping[str, Any]] = ()
) -> Diagnosis:
    """Ask the detectors and weigh what they say.

    Args:
        history: The run, finished or still going.
        detectors: Whom to ask.
        events: Lines of ``events.jsonl``, where the run is one of ours.
    """
    view = View(history, events)
    suspicions = [s for detector in detectors for s in detector.examine(view)]
    suspicions += too_fast(suspicions, view)
    return weigh(suspicions, view)


def confidence_of(log_odds: float) -> float:
    """Calibrated probability for raw log-odds."""
    return stats.sigmoid(SLOPE * log_odds + SHIFT)


def too_fast(suspicions: Iterable[Suspicion], view: View) -> list[Suspicion]:
    """``lr-too-high`` from what it does: several instabilities at once, early, with growing gradients."""
    shaky = [s for s in suspicions if s.code in _INSTABILITY and s.log_odds > -1.2 and s.severity != "info"]
    rate, gradient = view.series(metric.LEARNING_RATE), view.series(metric.GRAD_NORM)
    peak = max(rate.values, default=0.0)
    case = Suspicion("lr-too-high")
    onsets = [s.first_step for s in shaky if s.first_step is not None]
    span = view.history.last_step - view.history.first_step
    if len(shaky) >= 2 and onsets:
        weight = sum(min(1.0, stats.sigmoid(s.log_odds) + 0.2) for s in shaky)
        # All at one step is one broken update; a rate that is too high breaks one thing after another.
        at_once = max(onsets) - min(onsets) <= max(3.0, 0.03 * span)
        case.add((0.4 if at_once else 0.9) * min(weight, 3.0), "several-instabilities", count=len(shaky))
    if shaky and peak:
        case.add(1.8 * stats.ramp(stats.log10(peak), -5, -3.7), "rate-high", rate=peak)
    n = len(gradient)
    if shaky and n >= 4:
        early = stats.median(gradient.values[: max(2, n // 5)])
        top = max(stats.smooth(gradient.values, 3))
        case.add(0.8 * stats.ramp(top / max(early, 1e-9), 4, 15), "gradient-grew", early=early, late=top)
    if not case.clues or not onsets:
        return []
    case.first_step = min(onsets)
    if span > 0 and (case.first_step - view.history.first_step) / span < 0.35:
        case.add(0.4, "early-in-the-run", step=case.first_step)
    case.add(-2.5 * view.course.learned, "reward-rises")
    case.show(rate, *((rate.steps[rate.values.index(peak)],) if peak else ()))
    for other in shaky[:3]:
        for reading in other.readings[:2]:
            case.show_value(reading.metric, reading.step, reading.value)
    return [case]


def weigh(suspicions: Iterable[Suspicion], view: View) -> Diagnosis:
    """Rank by how well each explains the others, and draw the verdict."""
    best: dict[str, Suspicion] = {}
    for suspicion in suspicions:
        if suspicion.clues and (suspicion.code not in best or suspicion.log_odds > best[suspicion.code].log_odds):
            best[suspicion.code] = suspicion
    belief = {code: confidence_of(s.log_odds) for code, s in best.items()}
    ranked = sorted(best, key=lambda code: (-_rank(code, best, belief), code))
    findings = [_finding(best[code], belief, best) for code in ranked if best[code].log_odds >= REPORTED_AT]
    sick = [f for f in findings if f.severity != "info"]
    verdict: Severity | str = "healthy"
    if sick:
        verdict = "critical" if any(f.severity == "critical" for f in sick) else "warning"
        findings.sort(key=lambda f: f.severity == "info")
    else:
        findings = [_healthy(view, findings), *findings]
    return Diagnosis(verdict, tuple(findings), view.rows)


def _rank(code: str, best: dict[str, Suspicion], belief: dict[str, float]) -> float:
    """Own log-odds, plus what it explains, minus what explains it."""
    own = best[code]
    score = min(own.log_odds, 6.0)
    for other, suspicion in best.items():
        if other == code:
            continue
        if other in CATALOGUE[code].explains and _before(own, suspicion):
            score += 0.6 * belief[other]
        if code in CATALOGUE[other].explains and _before(suspicion, own):
            score -= 2.5 * belief[other] * stats.ramp(belief[other], 0.3, 0.7)
    return score


def _before(cause: Suspicion, effect: Suspicion) -> bool:
    """Whether the cause shows no later than the effect; unknown steps do not contradict."""
    if cause.first_step is None or effect.first_step is None:
        return True
    return cause.first_step <= effect.first_step + max(3.0, 0.02 * abs(effect.first_step))


def _finding(suspicion: Suspicion, belief: dict[str, float], best: dict[str, Suspicion]) -> Finding:
    entry = CATALOGUE[suspicion.code]
    confidence = belief[suspicion.code]
    severity = suspicion.severity or entry.severity
    if suspicion.log_odds < SICK_AT:
        severity = "info"
    elif severity == "critical" and suspicion.log_odds < CRITICAL_AT:
        severity = "warning"
    explains = tuple(
        code
        for code in entry.explains
        if code in best and best[code].log_odds >= REPORTED_AT and _before(suspicion, best[code])
    )
    return Finding(
        suspicion.code,
        severity,
        confidence,
        suspicion.first_step,
        tuple(suspicion.readings),
        tuple(suspicion.clues),
        explains,
    )


def _healthy(view: View, others: Sequence[Finding]) -> Finding:
    """``healthy``, as sure as nothing else is: an undisturbed run of many rows that learns is surer than one row."""
    worst = 0.6 * max((f.confidence for f in others), default=0.0)
    confidence = 0.55 + 0.2 * stats.ramp(view.rows, 1, 30) + 0.2 * view.course.learned
    series = view.series(metric.REWARD, view.course.source)
    readings = tuple(
        Reading(series.name, series.steps[i], series.values[i]) for i in sorted({0, len(series) - 1}) if len(series)
    )
    clues = [Clue(1.0, "nothing-wrong", {"rows": view.rows})]
    if view.course.learned > 0.3:
        clues.append(Clue(view.course.learned, "reward-rises", {}))
    return Finding("healthy", "info", round(confidence * (1 - worst), 4), None, readings, tuple(clues))
