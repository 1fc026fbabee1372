"""The doctor: reads a finished (or growing) log of any trainer and says what is the matter, why, and what to change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from levelhead import extensions
from levelhead.diagnosis.detectors import DETECTORS
from levelhead.diagnosis.detectors.base import Reading, View
from levelhead.diagnosis.detectors.ended import last_stop
from levelhead.diagnosis.findings import Language, family_of
from levelhead.diagnosis.history import DEFAULT_CAPACITY, History
from levelhead.diagnosis.notice import printable
from levelhead.diagnosis.ranking import Diagnosis, Finding, diagnose
from levelhead.diagnosis.remedies import remedies
from levelhead.doctor.informed import (
    TEXT_SAYS,
    Answers,
    Informed,
    Question,
    from_rollouts,
    from_settings,
    from_statements,
    place,
    place_readings,
    questions,
    worth,
)
from levelhead.doctor.readers.sources import Log, read
from levelhead.doctor.rollouts import RolloutFacts
from levelhead.doctor.runconfig import RunSettings
from levelhead.doctor.table import Table, Tabled
from levelhead.message import chinese, in_language_of

SEVERITIES = ("info", "warning", "critical")
"""From harmless to grave."""
_MOST_STRANGERS = 50
OF_A_SUMMARY = 0.9
"""What is left of a confidence that rests on statistics of a whole run, whose course is not known."""
NOTE_BELOW = 0.5
"""Confidence below which a finding is a note: more likely wrong than right."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What is known beside the log.

    Attributes:
        settings: From the run's script or configuration.
        rollouts: What its answers look like.
        answers: What a person said.
    """

    settings: RunSettings = field(default_factory=RunSettings)
    rollouts: RolloutFacts | None = None
    answers: Answers = field(default_factory=Answers)

    @property
    def keys(self) -> tuple[str, ...]:
        """Settings and questions that are answered."""
        return (*self.settings.values, *self.answers.settings.values, *self.answers.words, *self.answers.readings)


@dataclass(frozen=True, slots=True)
class Report:
    """A diagnosis with the log that it is about.

    Attributes:
        log: What was read.
        diagnosis: What is the matter.
        source: Name of what was read, for headings.
        extras: Further sections that another part of Levelhead has to say about this log; plain JSON.
        tables: The same for a reader.
        answered: Settings and questions that are answered beside the log.
        recipe: Of a run of our own, as plain data; what it has already is not advised.
    """

    log: Log
    diagnosis: Diagnosis
    source: str = ""
    extras: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    answered: tuple[str, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)

    @property
    def questions(self) -> list[Question]:
        """What would settle the diagnosis; empty where it is settled."""
        return questions(self.diagnosis, self.history, self.answered)

    @property
    def history(self) -> History:
        """The readings of the log."""
        return self.log.history

    def worst(self) -> str:
        """The verdict as a severity: ``info`` for a run without a fault."""
        return self.diagnosis.verdict if self.diagnosis.faulty else "info"

    def fails(self, severity: str) -> bool:
        """Whether the verdict is at least as grave as ``severity``."""
        return SEVERITIES.index(self.worst()) >= max(1, SEVERITIES.index(severity))

    def to_json(self, language: Language = "en") -> dict[str, Any]:
        """The document that ``levelhead doctor --json`` prints; numbers that are not finite become strings."""
        document = {
            "format": self.log.format,
            "rows": self.diagnosis.rows,
            "verdict": self.diagnosis.verdict,
            "findings": [self._finding(finding, language) for finding in self.diagnosis.findings],
            "unread": self.log.unread.to_json(),
        }
        log = self.log
        if log.guesses:
            document["guesses"] = [
                {"signal": n, "key": k, "confidence": c} for n, (k, c) in sorted(log.guesses.items())
            ]
        if log.strangers:
            document["strangers"] = sorted(log.strangers, key=lambda name: (-log.strangers[name], name))[
                :_MOST_STRANGERS
            ]
        if self.questions:
            document["questions"] = [
                {"key": q.key, "question": q.text.get(language), "command": q.command, "choices": list(q.choices)}
                for q in self.questions
            ]
        return {**document, **self.extras}

    def observed(self, name: str) -> float | None:
        """Largest reading of a metric, of which a remedy takes a multiple."""
        return max(self.history.series(name).values, default=None)

    def remedies(self, finding: Finding, language: Language = "en") -> list[dict[str, Any]]:
        """The changes to make for a finding, in the settings of the trainer that wrote the log."""
        evidence = (last_stop(self.log.events, self.history) or {}).get("evidence")
        changes = remedies(
            finding.code,
            self.observed,
            beside={f.code for f in self.diagnosis.findings},
            arguments=[argument.key for argument in finding.evidence],
            recipe=self.recipe,
            family=family_of(self.log.format),
            cause=evidence.get("cause") if isinstance(evidence, Mapping) else None,
        )
        return [
            {
                "set": {key: chinese(value) if language == "zh" else value for key, value in change.settings.items()},
                "why": change.why.get(language),
                "source": in_language_of(change.source, language),
            }
            for change in changes
        ]

    def _reading(self, reading: Reading) -> dict[str, Any]:
        """A reading for JSON; one of a whole run's statistics names that in place of a step."""
        if statistic := statistic_of(self.log, reading.metric, reading.value):
            return {"metric": reading.metric, "step": None, "statistic": statistic, "value": number(reading.value)}
        return {"metric": reading.metric, "step": number(reading.step), "value": number(reading.value)}

    def _finding(self, finding: Finding, language: Language) -> dict[str, Any]:
        return {
            "code": finding.code,
            "severity": finding.severity,
            "confidence": round(finding.confidence, 3),
            "first_step": number(finding.first_step),
            "evidence": [self._reading(reading) for reading in finding.readings],  # the rows that show it
            "remedies": self.remedies(finding, language),
        }


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


def number(value: float | None) -> float | int | str | None:
    """A number as JSON has it: whole ones without a fraction, others to six digits, what is not finite as text."""
    if value is None:
        return None
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.6g}")


def examine(
    path: str | Path,
    layout: str | None = None,
    keys: Mapping[str, str] | None = None,
    capacity: int = DEFAULT_CAPACITY,
    beside: Beside | None = None,
) -> Report:
    """Read the log or run folder at ``path`` and diagnose it.

    Args:
        path: File or folder.
        layout: Name of the format; recognised by content when ``None``.
        keys: The user's own ``canonical -> raw key`` pairs.
        capacity: Readings kept per signal before neighbours are merged.
        beside: What is known beside the log.

    Raises:
        InputError: If it cannot be read or holds no metrics.
    """
    log = read(path, layout, keys, capacity)
    facts = beside or Beside()
    if log.runs:
        return _worst_run(log, facts, str(path))
    recipe = _recipe(Path(path))
    report = Report(log, _diagnose(log, facts), str(path), _end(log), answered=facts.keys, recipe=recipe)
    for name, analyse in extensions.load_all("analyses").items():
        analysis: Tabled | None = analyse(Path(path))
        if analysis is not None:
            extras, tables = {**report.extras, name: analysis.to_json()}, [*report.tables, *analysis.tables()]
            report = replace(report, extras=extras, tables=tables)
    return report


def _worst_run(log: Log, beside: Beside, source: str) -> Report:
    """The report on the gravest run of a table of runs, with the verdicts of all."""
    reports = {
        name: Report(one := replace(log, history=run), _diagnose(one, beside), source, answered=beside.keys)
        for name, run in log.runs.items()
    }
    firsts = {name: report.diagnosis.findings[0] for name, report in reports.items()}

    shared = Counter(first.code for first in firsts.values())

    def gravity(name: str) -> tuple[int, bool, int, float]:
        stated = any(argument.key == TEXT_SAYS for argument in firsts[name].evidence)
        return SEVERITIES.index(reports[name].worst()), stated, shared[firsts[name].code], firsts[name].confidence

    worst = max(reports, key=gravity)
    verdicts = [
        (printable(n, 60), r.diagnosis.verdict, firsts[n].code, firsts[n].confidence) for n, r in reports.items()
    ]
    rows = tuple((verdict, code, f"{sure:.0%}", run) for run, verdict, code, sure in verdicts)
    keys = ("run", "verdict", "code", "confidence")
    return replace(
        reports[worst],
        source=f"{source} ({printable(worst, 60)})",
        extras={"runs": [dict(zip(keys, verdict, strict=True)) for verdict in verdicts]},
        tables=(Table("Verdicts by run", ("verdict", "finding", "confidence", "run"), rows),),
    )


def _diagnose(log: Log, beside: Beside) -> Diagnosis:
    """The diagnosis of a log with what is known beside it, as sure as its sources let it be."""
    settings = {**beside.settings.values, **beside.answers.settings.values}
    keys = {**beside.settings.keys, **beside.answers.settings.keys}
    together = RunSettings(settings, keys, beside.settings.source)
    place(log.history, together)
    place_readings(log.history, beside.answers.readings)
    view = View(log.history, log.events)
    arguments = [
        *from_settings(together, view),
        *from_statements(log.statements, view),
        *(from_rollouts(beside.rollouts) if beside.rollouts else ()),
        *worth(beside.answers),
    ]
    detectors = (Informed(arguments),) if arguments else DETECTORS
    return diagnose(log.history, detectors, log.events, partial(tempered, log=log))


def _recipe(path: Path) -> Mapping[str, Any]:
    """The recipe of a run folder of our own; empty for any other log."""
    folder = path if path.is_dir() else path.parent
    if not (folder / "metrics.jsonl").is_file() or not (folder / "recipe.yaml").is_file():
        return {}
    from levelhead.recipe.history import in_force  # most logs have no recipe, and the import takes a tenth of the time

    return in_force(folder)


def _end(log: Log) -> dict[str, Any]:
    """The event that ended the run before its end, for JSON; empty for any other run."""
    last = last_stop(log.events, log.history)
    return {} if last is None else {"ended": {key: last.get(key) for key in ("step", "code", "message")}}


def examine_rows(rows: Iterable[Mapping[str, float]], source: str = "rows") -> Report:
    """Diagnose rows that are in memory, under canonical names, with an optional ``step``.

    Raises:
        ValueError: If there are none.
    """
    from levelhead.doctor.readers.base import Unread

    history = History()
    for index, row in enumerate(rows, start=1):
        history.append(float(row.get("step", index)), {k: v for k, v in row.items() if k != "step"})
    if not history.rows:
        raise ValueError("no rows to diagnose")
    return Report(Log(source, history, Unread()), diagnose(history), source)
