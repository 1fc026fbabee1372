"""A report as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead import metrics as metric
from levelhead.diagnosis.chinese import said
from levelhead.diagnosis.detectors.base import Reading
from levelhead.diagnosis.findings import CATALOGUE, Language, Text, wording
from levelhead.diagnosis.notice import message_of, printable
from levelhead.diagnosis.ranking import VERDICTS, Finding
from levelhead.diagnosis.remedies import settings_text
from levelhead.doctor.informed import line
from levelhead.doctor.readers.sources import Log
from levelhead.doctor.report import Report, number, statistic_of
from levelhead.doctor.table import in_brackets, in_language, label, mark, since
from levelhead.message import in_language_of
from levelhead.metrics import held_out
from levelhead.terminal import paint, safe, width, wrapped

_COLOURS = {"critical": "31;1", "warning": "33;1", "healthy": "32;1", "learns": "32", "info": "2"}
_SETTLE = Text("what would settle it:", "确认以下问题即可定论\uff1a")
_MOST_NOTED = 12
_OUTCOMES = (metric.PART_MEAN.prefix, held_out.NUMBER.prefix)
_TOOK = Text(
    "took {key} as {signal} ({confidence:.0%} sure)", "将 {key} 视为 {signal}\uff08置信度 {confidence:.0%}\uff09"
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
_WIDTH = 100
"""Columns of a paragraph, where the terminal has as many."""


def text(report: Report, language: Language = "en", colour: bool = False) -> str:
    """The report in full as one text that is safe to print: see :func:`lines`.

    Args:
        report: What to print.
        language: ``en`` or ``zh``.
        colour: Use ANSI colours.
    """
    return "\n".join(paint(words, tone if colour else "") for words, tone in lines(report, language))


def lines(report: Report, language: Language = "en") -> Iterator[tuple[str, str]]:
    """The report line by line: the verdict, the findings that matter at length, the others in a line each.

    Yields:
        The words, as the log may have them, and the ANSI colour that they are painted with; empty for none.
    """
    yield from ((line, "") if isinstance(line, str) else line for line in _lines(report, language))


def headline(report: Report, language: Language = "en") -> str:
    """One line: verdict, first finding, step."""
    first = report.diagnosis.findings[0]
    if first.code in VERDICTS:
        why = first.evidence[-1]
        verdict = f"{label(first.code, language)}{mark(':', language)}"
        return safe(verdict + wording(first.code, why.key, why.numbers, language))
    title = CATALOGUE[first.code].title.get(language)
    words = f"{label(first.severity, language)}{mark(':', language)}{title}{in_brackets(first.code, language)}"
    return safe(words + _since(first, language))


def finding_line(finding: Finding, report: Report, language: Language = "en") -> str:
    """A finding in one line, for a log: severity, name, confidence, first step, a reading and what to change."""
    entry = CATALOGUE[finding.code]
    comma, colon, semicolon = (mark(sign, language) for sign in ",:;")
    about = f"{finding.code}{comma}{label('confidence', language)} {finding.confidence:.0%}{_since(finding, language)}"
    words = f"{label(finding.severity, language)}{colon}{entry.title.get(language)}{in_brackets(about, language)}"
    if finding.readings:
        last = max(finding.readings, key=lambda r: r.step)
        words += f"{semicolon}{last.metric} @{_n(last.step)} = {_n(last.value)}"
    for remedy in report.remedies(finding, language)[:1]:
        words += f"{semicolon}{label('remedies', language)}{colon}{settings_text(remedy['set'])}"
    return safe(words)


def _lines(report: Report, language: Language) -> Iterator[str | tuple[str, str]]:
    diagnosis, history = report.diagnosis, report.history
    comma, colon = mark(",", language), mark(":", language)
    span = f"{label('steps', language)} {_n(history.first_step)}-{_n(history.last_step)}"
    span += " 步" if language == "zh" else ""
    rows = f"{diagnosis.rows} {label('rows', language)}"
    yield f"{report.source}{colon}{label('format', language)} {report.log.format}{comma}{rows}{comma}{span}"
    for part in _wrap(headline(report, language), indent=0):
        yield part, _COLOURS.get(diagnosis.verdict, "")
    main = diagnosis.leading or diagnosis.findings[:1]
    for finding in main:
        yield ""
        yield from _finding(finding, report, language)
    if rest := [f for f in diagnosis.findings if f not in main]:
        yield ""
        yield f"{label('also', language)}{colon.rstrip()}"
        for finding in rest:
            title = CATALOGUE[finding.code].title.get(language)
            sure = in_brackets(f"{finding.confidence:.0%}", language)
            yield from _wrap(f"{finding.code}{colon}{title}{sure}{_since(finding, language)}")
    if notes := list(_notes(report.log, language)):
        yield ""
        for note in notes:
            yield from _wrap(f"- {note}")
    if report.questions:
        yield ""
        yield _SETTLE.get(language)
        for question in report.questions:
            yield from _wrap(line(question, language))
    yield from _events(report, language)
    for table in report.tables:
        yield ""
        yield from in_language(table, language).lines()
    unread = report.log.unread
    if unread.count:
        yield ""
        yield f"{label('unread', language)}{in_brackets(str(unread.count), language)}{colon.rstrip()}"
        for sample in unread.samples[:5]:
            where = f"{sample.get('file', '')}:{sample['line']}" if sample["line"] else "-"
            yield f"  {where} {in_language_of(sample['why'], language)}"


def _finding(finding: Finding, report: Report, language: Language) -> Iterator[str | tuple[str, str]]:
    entry = CATALOGUE[finding.code]
    comma, colon, semicolon = (mark(sign, language) for sign in ",:;")
    head = f"[{label(finding.severity, language)}] {finding.code}{colon}{entry.title.get(language)}"
    if finding.code != "undecided":
        head += f"{comma}{label('confidence', language)} {finding.confidence:.0%}{_since(finding, language)}"
    for part in _wrap(head, indent=0):
        yield part, _COLOURS.get(finding.severity, "")
    yield from _wrap(entry.meaning.get(language))
    for sign, name in ((1, "for"), (-1, "against")):
        evidence = sorted((c for c in finding.evidence if c.weight * sign > 0), key=lambda c: -abs(c.weight))
        if words := [wording(finding.code, c.key, c.numbers, language) for c in evidence]:
            yield from _wrap(f"{label(name, language)}{colon}{semicolon.join(words)}")
    if finding.readings:
        shown = ", ".join(f"{r.metric} {_where(r, report, language)} = {_n(r.value)}" for r in finding.readings)
        yield from _wrap(f"{label('evidence', language)}{colon}{shown}")
    if finding.explains:
        yield from _wrap(f"{label('explains', language)}{colon}{', '.join(finding.explains)}")
    if finding.code == "healthy":
        return
    yield from _wrap(f"{label('confirm', language)}{colon}{entry.confirm.get(language)}")
    for remedy in report.remedies(finding, language)[:3]:
        yield from _wrap(f"{label('remedies', language)}{colon}{settings_text(remedy['set'])}")
        yield from _wrap(f"{remedy['why']} [{remedy['source']}]", indent=4)


def _notes(log: Log, language: Language = "en") -> Iterator[str]:
    """What a reader should know about how the log was understood."""
    for signal, (key, confidence) in sorted(log.guesses.items())[:_MOST_NOTED]:
        yield _TOOK.get(language).format(key=printable(key, 60), signal=printable(signal, 60), confidence=confidence)
    if log.summary:
        names = ", ".join(printable(name, 60) for name in sorted(log.summary)[:_MOST_NOTED])
        yield _ONLY.get(language).format(names=names)
    if log.strangers:
        names = ", ".join(
            printable(name, 60) for name in sorted(log.strangers, key=lambda n: (-log.strangers[n], n))[:_MOST_NOTED]
        )
        more = len(log.strangers) - _MOST_NOTED
        yield _UNKNOWN.get(language).format(names=names + (f", +{more}" if more > 0 else ""))
        if not any(name == metric.REWARD or name.startswith(_OUTCOMES) for name in log.history.columns):
            yield _IS_ONE.get(language)


def _where(reading: Reading, report: Report, language: Language) -> str:
    """The step of a reading, or the statistic of the whole run that it is."""
    statistic = statistic_of(report.log, reading.metric, reading.value)
    return f"({said(statistic, language)})" if statistic else f"@{_n(reading.step)}"


def _events(report: Report, language: Language) -> Iterator[str]:
    acted = [event for event in report.log.events if event.get("action")]
    if not acted:
        return
    yield ""
    yield f"{label('guard', language)}{mark(':', language).rstrip()}"
    for event in acted[:12]:
        code, message = printable(event["code"], 80), message_of(event, language)
        step, action = printable(event.get("step"), 20), said(printable(event["action"], 40), language)
        yield f"  {step}{mark(':', language)}{action}{in_brackets(code, language)} {message}"
    if len(acted) > 12:
        yield f"  ... {len(acted) - 12}"


def _since(finding: Finding, language: Language) -> str:
    if finding.first_step is None:
        return ""
    return mark(",", language) + since(_n(finding.first_step), language)


def _n(value: float | None) -> str:
    shown = number(value)
    return f"{shown:.4g}" if isinstance(shown, float) else str(shown)


def _wrap(words: str, indent: int = 2) -> Iterator[str]:
    """Break a paragraph so that its lines stay readable."""
    return wrapped(words, min(width(), _WIDTH), indent)
