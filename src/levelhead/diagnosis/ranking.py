"""From candidate findings to a diagnosis: what explains what, how sure that is, and what the verdict comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors import DETECTORS, Candidate, Detector, View
from levelhead.diagnosis.detectors.base import Evidence, Reading
from levelhead.diagnosis.detectors.improvement import gaps_over_constant, over_constant
from levelhead.diagnosis.findings import CATALOGUE
from levelhead.diagnosis.history import History
from levelhead.diagnosis.trend import ends
from levelhead.records import Severity

# Confidence = sigmoid(SLOPE * log-odds + SHIFT): Platt scaling (Platt 1999), fitted by bench/doctor_accuracy.py --fit.
SLOPE = 1.0
SHIFT = 0.38

REPORTED_AT = -1.4
"""Findings of lower log-odds are left out."""
UNHEALTHY_AT = -SHIFT / SLOPE
"""A finding from these log-odds on (more likely than not, calibrated), worse than ``info``, makes a run unhealthy."""
CRITICAL_AT = 0.6
"""A critical finding of lower log-odds is a warning."""

MOST = 0.89
"""Highest confidence in a sound run, and in a finding after the first: too few labelled logs bear out 90%."""

_INSTABILITY = (
    "kl-blowup",
    "gradient-spike",
    "entropy-collapse",
    "entropy-explosion",
    "catastrophic-update",
    "length-collapse",
    "update-collapse",
)

# Set by hand on the development logs (docs/doctor.md), unless a line says otherwise.
# Weights are log-odds; a range begins where nothing counts and ends where all does.
_SHAKY_AT = -1.2  # log-odds from which an instability counts,
_SHAKY_LEAST = 0.2  # and how much it counts beyond its probability
_AT_ONCE_STEPS = 3.0  # steps within which instabilities are one broken update,
_AT_ONCE_SHARE = 0.03  # or share of the run
_AT_ONCE_WEIGHT = 0.4  # and all at once
_ONE_BY_ONE_WEIGHT = 0.9  # log-odds of several, one after another,
_SEVERAL_MOST = 3.0  # for at most so many
_RATE_HIGH_WEIGHT = 1.8
_RATE_HIGH_RANGE = (-5, -3.7)
_ROWS_OF_GRADIENT = 4  # rows before growing gradients are judged
_BEGIN_PART = 5  # the first such part of them
_TOP_ROWS = 3  # rows that the largest is smoothed over
_GRADIENT_GREW_WEIGHT = 0.8
_GRADIENT_GREW_RANGE = (4, 15)
_EARLY = 0.25  # share of the run that is early
_EARLY_IN_THE_RUN_WEIGHT = 0.4
_REWARD_RISES_WEIGHT = -2.5
_SHOWN = 3  # instabilities whose readings are shown
_OWN_MOST = 6.0  # log-odds beyond which a finding is no surer for the ranking
_EXPLAINS = 0.6  # log-odds that a finding gains by each one that it explains,
_EXPLAINED = 2.5  # and loses by each one that explains it,
_EXPLAINED_RANGE = (0.3, 0.7)  # by the probability of that one
_CERTAIN = 0.9  # confidence from which a cause comes before whatever it explains
_HAS_COME = 0.65  # confidence from which a critical effect comes before a cause that is only a warning
_ORDER_STEPS = 3.0  # steps by which a cause may seem later than its effect,
_ORDER_SHARE = 0.02  # or share of the step


@dataclass(frozen=True, slots=True)
class Finding:
    """One entry of a diagnosis.

    Attributes:
        code: Entry of the catalogue.
        severity: How bad it is here.
        confidence: Calibrated probability that it is right.
        first_step: First bad step; ``None`` where no step can be named.
        readings: Rows that show it.
        evidence: Arguments for and against.
        explains: Codes of other findings that follow from this one.
    """

    code: str
    severity: Severity
    confidence: float
    first_step: float | None
    readings: tuple[Reading, ...]
    evidence: tuple[Evidence, ...]
    explains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is the matter with a run.

    Attributes:
        verdict: ``critical`` or ``warning`` by the gravest finding; without one ``healthy``, ``learns`` (it learns, and
            here is what it costs) or ``undecided``.
        findings: Best explanation first; a run without a fault begins with the finding that its verdict is named after.
        rows: Rows of the run.
    """

    verdict: Severity | str
    findings: tuple[Finding, ...]
    rows: int

    @property
    def faulty(self) -> bool:
        """Whether some finding is a warning or critical."""
        return self.verdict in ("warning", "critical")

    @property
    def leading(self) -> tuple[Finding, ...]:
        """The findings worse than ``info`` that no finding before them explains: what a person is to act upon."""
        leading: list[Finding] = []
        for finding in self.findings:
            if finding.severity != "info" and not any(finding.code in other.explains for other in leading):
                leading.append(finding)
        return tuple(leading)


def diagnose(
    history: History,
    detectors: Sequence[Detector] = DETECTORS,
    events: Sequence[Mapping[str, Any]] = (),
    trust: Callable[[Finding], Finding] | None = None,
) -> Diagnosis:
    """Ask the detectors and weigh what they say.

    Args:
        history: The run, finished or still going.
        detectors: Whom to ask.
        events: Lines of ``events.jsonl``, where the run is one of ours.
        trust: Lowers the confidence of a finding whose readings are not certain.
    """
    view = View(history, events)
    candidates = [s for detector in detectors for s in detector.examine(view)]
    candidates += too_fast(candidates, view)
    return weigh(candidates, view, trust)


def confidence_of(log_odds: float) -> float:
    """Calibrated probability for raw log-odds."""
    return stats.sigmoid(SLOPE * log_odds + SHIFT)


def too_fast(candidates: Iterable[Candidate], view: View) -> list[Candidate]:
    """``lr-too-high`` from what it does: several instabilities at once, early, with growing gradients."""
    shaky = [s for s in candidates if s.code in _INSTABILITY and s.log_odds > _SHAKY_AT and s.severity != "info"]
    rate, gradient = view.series(metric.LEARNING_RATE), view.series(metric.GRAD_NORM)
    peak = max(rate.values, default=0.0)
    case = Candidate("lr-too-high")
    onsets = [s.first_step for s in shaky if s.first_step is not None]
    span = view.history.last_step - view.history.first_step
    if len(shaky) >= 2 and onsets:
        weight = sum(min(1.0, stats.sigmoid(s.log_odds) + _SHAKY_LEAST) for s in shaky)
        # All at one step is one broken update; a rate that is too high breaks one thing after another.
        at_once = max(onsets) - min(onsets) <= max(_AT_ONCE_STEPS, _AT_ONCE_SHARE * span)
        case.add(
            (_AT_ONCE_WEIGHT if at_once else _ONE_BY_ONE_WEIGHT) * min(weight, _SEVERAL_MOST),
            "several-instabilities",
            count=len(shaky),
        )
    if shaky and peak:
        case.add(_RATE_HIGH_WEIGHT * stats.ramp(stats.log10(peak), *_RATE_HIGH_RANGE), "rate-high", rate=peak)
    n = len(gradient)
    if shaky and n >= _ROWS_OF_GRADIENT:
        early = stats.median(gradient.values[: max(2, n // _BEGIN_PART)])
        top = max(stats.smooth(gradient.values, _TOP_ROWS))
        case.add(
            _GRADIENT_GREW_WEIGHT * stats.ramp(top / max(early, 1e-9), *_GRADIENT_GREW_RANGE),
            "gradient-grew",
            early=early,
            late=top,
        )
    if not case.evidence or not onsets:
        return []
    case.first_step = min(onsets)
    if span > 0 and (case.first_step - view.history.first_step) / span < _EARLY:
        case.add(_EARLY_IN_THE_RUN_WEIGHT, "early-in-the-run", step=case.first_step)
    case.add(_REWARD_RISES_WEIGHT * view.reward_trend.learned, "reward-rises")
    case.show(rate, *((rate.steps[rate.values.index(peak)],) if peak else ()))
    for other in shaky[:_SHOWN]:
        for reading in other.readings[:2]:
            case.show_value(reading.metric, reading.step, reading.value)
    return [case]


def weigh(candidates: Iterable[Candidate], view: View, trust: Callable[[Finding], Finding] | None = None) -> Diagnosis:
    """Rank by how well each explains the others, and draw the verdict."""
    best: dict[str, Candidate] = {}
    for candidate in candidates:
        if candidate.evidence and (candidate.code not in best or candidate.log_odds > best[candidate.code].log_odds):
            best[candidate.code] = candidate
    belief = {code: confidence_of(s.log_odds) for code, s in best.items()}
    ranked = sorted(best, key=lambda code: (-_rank(code, best, belief), code))
    for leader in list(ranked):
        after = [code for code in ranked if _leads(leader, code, best, belief)]
        if after and ranked.index(after[0]) < ranked.index(leader):
            ranked.remove(leader)
            ranked.insert(ranked.index(after[0]), leader)
    findings = [_finding(best[code], belief, best) for code in ranked if best[code].log_odds >= REPORTED_AT]
    findings = [trust(finding) for finding in findings] if trust else findings
    findings.sort(key=lambda f: f.severity == "info")
    findings[1:] = [replace(f, confidence=min(f.confidence, MOST)) for f in findings[1:]]
    severities = {f.severity for f in findings} - {"info"}
    if severities:
        return Diagnosis("critical" if "critical" in severities else "warning", tuple(findings), view.rows)
    sound = without_fault(view, max((f.confidence for f in findings), default=0.0))
    return Diagnosis(sound.code, (sound, *findings), view.rows)


def _rank(code: str, best: dict[str, Candidate], belief: dict[str, float]) -> float:
    """Own log-odds, plus what it explains, minus what explains it."""
    own = best[code]
    score = min(own.log_odds, _OWN_MOST)
    for other, candidate in best.items():
        if other == code:
            continue
        if other in CATALOGUE[code].explains and _before(own, candidate):
            score += _EXPLAINS * belief[other]
        if code in CATALOGUE[other].explains and _before(candidate, own) and not _graver(code, other):
            score -= _EXPLAINED * belief[other] * stats.ramp(belief[other], *_EXPLAINED_RANGE)
    return score


def _leads(one: str, other: str, best: dict[str, Candidate], belief: dict[str, float]) -> bool:
    """Whether a finding always comes before another: as its certain cause, or as what it only warns of and has come."""
    if other in CATALOGUE[one].explains and _before(best[one], best[other]):
        return belief[one] >= _CERTAIN and not _graver(other, one)
    return one in CATALOGUE[other].explains and _graver(one, other) and belief[one] >= _HAS_COME


def _graver(effect: str, cause: str) -> bool:
    """Whether a cause is only a warning of what may come, and the effect has come: then the effect leads."""
    return CATALOGUE[effect].severity == "critical" and CATALOGUE[cause].severity != "critical"


def _before(cause: Candidate, effect: Candidate) -> bool:
    """Whether the cause shows no later than the effect; unknown steps do not contradict."""
    if cause.first_step is None or effect.first_step is None:
        return True
    return cause.first_step <= effect.first_step + max(_ORDER_STEPS, _ORDER_SHARE * abs(effect.first_step))


def _finding(candidate: Candidate, belief: dict[str, float], best: dict[str, Candidate]) -> Finding:
    entry = CATALOGUE[candidate.code]
    confidence = belief[candidate.code]
    severity = candidate.severity or entry.severity
    if candidate.log_odds < UNHEALTHY_AT:
        severity = "info"
    elif severity == "critical" and candidate.log_odds < CRITICAL_AT:
        severity = "warning"
    explains = tuple(
        code
        for code in entry.explains
        if code in best and best[code].log_odds >= REPORTED_AT and _before(candidate, best[code])
    )
    return Finding(
        candidate.code,
        severity,
        confidence,
        candidate.first_step,
        tuple(candidate.readings),
        tuple(candidate.evidence),
        explains,
    )


VERDICTS = ("healthy", "learns", "undecided")
"""Verdicts on runs without a fault, and the findings that say why."""
LEAST_ROWS = 8
"""Readings of an outcome below which nothing is called healthy."""

# Set by hand on the development logs (docs/doctor.md), unless a line says otherwise.
# A range begins where nothing counts and ends where all does.
_RISEN = 0.3  # strength of a rise that is one
_HIGH = 0.5  # how surely a reward stands high,
_FALLS = -1.5  # and the standard errors (Kendall's tau) by which it falls from there
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
_CUT_GREW = 0.1  # where it has grown by so much,
_MOSTLY_CUT = 0.8  # and share that is one anyway
_DEAD = 0.6  # share of groups without contrast that is a cost
_ENTROPY_LEFT = 0.4  # share of the first entropy that is left
_SOLVED = 0.9  # nearness to the top from which the task is solved,
_MOSTLY = 0.6  # where so many readings stand there


def without_fault(view: View, doubt: float) -> Finding:
    """Return the verdict on a run in which no finding is more likely than not: ``healthy``, ``learns``, ``undecided``.

    Its confidence is the probability that the run is sound, 0.5 where that is not decided; its readings are the first
    and the last of the outcome.

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
    if missing := _missing(view, len(outcome), doubt):
        return Finding("undecided", "info", _UNDECIDED, None, readings, (missing,))
    judged = any(t.rise > _RISEN for t in (*trend.held_out.values(), *trend.task_scores.values()))
    sure = _BASE + _ROWS * stats.ramp(len(outcome), *_ROWS_RANGE) + _LEARNED * trend.learned + _JUDGED * judged
    confidence = round(min(sure, MOST) * (1 - _DOUBT * doubt), 4)
    evidence = [Evidence(1.0, "nothing-wrong", {"rows": view.rows})]
    if trend.learned > _RISEN:
        evidence.append(Evidence(trend.learned, "reward-rises", {}))
    costs = _costs(view)
    return Finding("learns" if costs else "healthy", "info", confidence, None, readings, (*evidence, *costs))


def _missing(view: View, outcomes: int, doubt: float) -> Evidence | None:
    """What keeps a run from being called healthy; ``None`` where nothing does."""
    trend = view.reward_trend
    gain, top = trend.reward.late - trend.reward.early, trend.top or 0.0
    outside = (*trend.held_out.values(), *trend.task_scores.values())
    if not outcomes:
        return Evidence(1.0, "no-outcome", {"rows": view.rows})
    if outcomes < LEAST_ROWS:
        return Evidence(1.0, "few-outcomes", {"rows": outcomes})
    if trend.learned <= _RISEN and (trend.holds < _HIGH or (gain < -_LEAST_GAIN * top and _falls(view))):
        return Evidence(1.0, "no-rise-yet", {"early": trend.reward.early, "late": trend.reward.late, "rows": outcomes})
    if trend.reward.late < _LOW * top and gain < _LEAST_GAIN * top and not any(t.rise > _RISEN for t in outside):
        return Evidence(1.0, "hardly-risen", {"early": trend.reward.early, "late": trend.reward.late, "top": top})
    if doubt >= _NEARLY_EVEN:
        return Evidence(1.0, "doubt-stands", {"doubt": doubt})
    for task, gap, error, _ in gaps_over_constant(view.history):
        if over_constant(gap, error) == "undecided":
            return Evidence(1.0, "unclear-over-constant", {"task": task, "gap": gap.values[-1], "error": error})
    return None


def _falls(view: View) -> bool:
    """Whether the reward goes down, however high it stands."""
    return stats.kendall_z(view.history.series(view.reward_trend.source).values) <= _FALLS


def _costs(view: View) -> list[Evidence]:
    """What the run pays for its rise: cut answers, groups without contrast, entropy, or nothing left to learn."""
    evidence = []
    cut, dead, entropy = view.series(metric.CLIPPED_RATIO), view.dead, view.entropy
    if len(cut) >= LEAST_ROWS:
        early, late = ends(cut)
        if late >= _MOSTLY_CUT or (late >= _CUT and late - early >= _CUT_GREW):
            evidence.append(Evidence(-1.0, "costs-cut", {"early": early, "late": late}))
    if len(dead) >= LEAST_ROWS and (late := stats.mean(dead.values[-stats.edge(len(dead)) :])) >= _DEAD:
        evidence.append(Evidence(-1.0, "costs-contrast", {"late": late}))
    if len(entropy) >= LEAST_ROWS:
        early, late = ends(entropy)
        if late < _ENTROPY_LEFT * early:
            evidence.append(Evidence(-1.0, "costs-entropy", {"early": early, "late": late}))
    reward, top = view.series(metric.REWARD, view.reward_trend.source), view.reward_trend.top
    at_top = bool(top) and sum(value >= _SOLVED * (top or 0.0) for value in reward.values) > _MOSTLY * len(reward)
    if view.reward_trend.near_top >= _SOLVED and (evidence or at_top):
        evidence.append(Evidence(-1.0, "solved", {"late": view.reward_trend.reward.late}))
    return evidence
