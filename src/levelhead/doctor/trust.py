"""How far a diagnosis leans on names that were judged by their words, and on statistics in place of a course."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from levelhead.diagnosis.findings import Language, Text
from levelhead.diagnosis.notice import printable
from levelhead.diagnosis.ranking import Finding
from levelhead.doctor.readers.sources import Log

OF_A_SUMMARY = 0.9
"""What is left of a confidence that rests on statistics of a whole run, whose course is not known."""
NOTE_BELOW = 0.5
"""Confidence below which a finding is a note: more likely wrong than right."""

_MOST = 12
_TOOK = Text(
    "took {key} as {signal} ({confidence:.0%} sure)", "将 {key} 视为 {signal}\uff08把握 {confidence:.0%}\uff09"
)
_UNKNOWN = Text("numbers under names that say nothing here: {names}", "名称不认识、未采用的数值\uff1a{names}")
_IS_ONE = Text(
    "if one of them is the reward or a score, say which: --map reward=NAME",
    "如果其中有奖励或得分\uff0c请指明\uff1a--map reward=NAME",
)
_ONLY = Text(
    "statistics of the whole run ({names}): their order is known, their steps are not",
    "只有整次训练的统计量\uff08{names}\uff09\uff1a知道先后\uff0c不知道步数",
)


def tempered(finding: Finding, log: Log) -> Finding:
    """The finding with the confidence that its sources deserve; one that falls below a half becomes a note."""
    metrics = {reading.metric for reading in finding.readings}
    trust = min((log.guesses[m][1] for m in metrics if m in log.guesses), default=1.0)
    summed = bool(metrics & log.summary.keys())
    if trust == 1.0 and not summed:
        return finding
    confidence = round(finding.confidence * trust * (OF_A_SUMMARY if summed else 1.0), 4)
    severity = finding.severity if confidence >= NOTE_BELOW or finding.confidence < NOTE_BELOW else "info"
    only = bool(metrics) and metrics <= log.summary.keys()
    return replace(finding, confidence=confidence, severity=severity, first_step=None if only else finding.first_step)


def statistic_of(log: Log, metric: str, value: float) -> str:
    """The statistic that a reading is; empty for a reading at a step."""
    return next((name for name, number in log.summary.get(metric, {}).items() if number == value), "")


def notes(log: Log, language: Language = "en") -> Iterator[str]:
    """What a reader should know about how the log was understood."""
    for signal, (key, confidence) in sorted(log.guesses.items())[:_MOST]:
        yield _TOOK.get(language).format(key=printable(key, 60), signal=printable(signal, 60), confidence=confidence)
    if log.summary:
        names = ", ".join(printable(name, 60) for name in sorted(log.summary)[:_MOST])
        yield _ONLY.get(language).format(names=names)
    if log.strangers:
        names = ", ".join(
            printable(name, 60) for name in sorted(log.strangers, key=lambda n: (-log.strangers[n], n))[:_MOST]
        )
        more = len(log.strangers) - _MOST
        yield _UNKNOWN.get(language).format(names=names + (f", +{more}" if more > 0 else ""))
        if not any(name == "reward" or name.startswith(("rewards/", "eval/")) for name in log.history.columns):
            yield _IS_ONE.get(language)
