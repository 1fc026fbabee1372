"""A report as one self-contained HTML page: the verdict, the findings, and the curves that show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.findings import CATALOGUE, Language, wording
from levelhead.diagnosis.history import Series
from levelhead.diagnosis.ranking import VERDICTS, Finding
from levelhead.doctor.report import Report, number
from levelhead.doctor.table import Table, in_brackets, in_language, label, mark, since
from levelhead.message import in_language_of

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 560, 170, 80, 22, 10
_POINTS = 400
_ALWAYS = (
    metric.REWARD,
    metric.REWARD_STD,
    metric.ZERO_STD,
    metric.ENTROPY,
    metric.KL,
    metric.GRAD_NORM,
    metric.MEAN_LENGTH,
    metric.CLIPPED_RATIO,
    metric.VALIDITY,
    metric.STEP_TIME,
    metric.LEARNING_RATE,
)
_STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def page(report: Report, language: Language = "en") -> str:
    """The page; it needs no network, and every text from the log is escaped."""
    verdict = report.diagnosis.findings[0].severity if report.diagnosis.faulty else report.diagnosis.verdict
    first = CATALOGUE[report.diagnosis.findings[0].code].title.get(language)
    body = [
        f"<header><h1><span class='{verdict}'>{escape(label(verdict, language))}</span>",
        f"{mark(':', language)}{escape(first)}</h1>",
        _about(report, language),
        "<div class='curves'>",
        *_curves(report, language),
        "</div>",
        *(_card(finding, report, language) for finding in report.diagnosis.findings),
        *(_table(in_language(table, language)) for table in report.tables),
        *_unread(report, language),
    ]
    whole = (
        f"<!doctype html><html lang='{language}'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>{escape(first)} - {escape(report.source)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )
    return whole.encode("utf-8", "replace").decode("utf-8")  # half a character, from a log, is none in any encoding


def _about(report: Report, language: Language) -> str:
    read = f"{label('format', language)} {escape(report.log.format)}"
    rows = f"{report.diagnosis.rows} {label('rows', language)}"
    return f"<p class='soft'>{escape(report.source)} &middot; {read} &middot; {rows}</p></header>"


def _card(finding: Finding, report: Report, language: Language) -> str:
    entry = CATALOGUE[finding.code]
    kind = finding.code if finding.code in VERDICTS else finding.severity
    step = number(finding.first_step)
    when = "" if step is None else mark(",", language) + since(step, language)
    head = (
        f"<h2><span class='{kind}'>{escape(entry.title.get(language))}</span> <code>{finding.code}</code> "
        f"<span class='soft'>{label('confidence', language)} {finding.confidence:.0%}{when}</span></h2>"
    )
    parts = [f"<p>{escape(entry.meaning.get(language))}</p>", "<dl>"]
    for sign, name in ((1, "for"), (-1, "against")):
        words = [wording(finding.code, c.key, c.numbers, language) for c in finding.evidence if c.weight * sign > 0]
        if words:
            parts.append(f"<dt>{label(name, language)}</dt><dd>{escape(mark(';', language).join(words))}</dd>")
    if finding.severity != "info":
        parts += _texts(finding, language)
    parts.append("</dl>")
    if finding.severity != "info":
        parts += _remedies(finding, report, language)
    curves = _links(finding, report, language)
    return f"<section class='card' id='{finding.code}'>{head}{''.join(parts)}{curves}</section>"


def _links(finding: Finding, report: Report, language: Language) -> str:
    """Links to the curves that show a finding."""
    drawn = _drawn(report)
    links = [
        f"<a href='#{_anchor(drawn.index(name))}'>{escape(name)}</a>"
        for name in dict.fromkeys(r.metric for r in finding.readings)
        if name in drawn
    ]
    return f"<p class='soft'>{label('curves', language)}{mark(':', language)}{', '.join(links)}</p>" if links else ""


def _anchor(number_of_curve: int) -> str:
    return f"curve-{number_of_curve}"


def _texts(finding: Finding, language: Language) -> Iterator[str]:
    entry = CATALOGUE[finding.code]
    for name, words in (("mechanism", entry.mechanism), ("differs", entry.differs), ("confirm", entry.confirm)):
        yield f"<dt>{label(name, language)}</dt><dd>{escape(words.get(language))}</dd>"
    if finding.readings:
        rows = "".join(
            f"<tr><td>{escape(r.metric)}</td><td>{number(r.step)}</td><td>{number(r.value)}</td></tr>"
            for r in finding.readings
        )
        yield f"<dt>{label('evidence', language)}</dt><dd class='wide'><table>{rows}</table></dd>"


def _remedies(finding: Finding, report: Report, language: Language) -> Iterator[str]:
    for remedy in report.remedies(finding, language):
        settings = ", ".join(f"{key}: {value}" for key, value in remedy["set"].items())
        yield (
            f"<p><b>{label('remedies', language)}</b> <code>{escape(settings)}</code><br>{escape(remedy['why'])} "
            f"<span class='soft'>[{escape(remedy['source'])}]</span></p>"
        )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    body = f"<div class='wide'><table><tr>{head}</tr>{rows}</table></div>"
    return f"<section class='card'><h2>{escape(table.title)}</h2>{body}</section>"


def _drawn(report: Report) -> list[str]:
    """Names of the curves: the usual signals, and those that the findings point at."""
    pointed = [r.metric for f in report.diagnosis.findings for r in f.readings]
    return [name for name in dict.fromkeys([*_ALWAYS, *pointed]) if len(report.history.series(name)) >= 2]


def _curves(report: Report, language: Language) -> Iterator[str]:
    """Curves with the first bad steps of the findings that point at them marked."""
    for i, name in enumerate(_drawn(report)):
        series = report.history.series(name)
        marks = [
            (f.first_step, f.code)
            for f in report.diagnosis.findings
            if f.first_step is not None and f.severity != "info" and any(r.metric == name for r in f.readings)
        ]
        scale = in_brackets(label("log-scale", language), language) if _logarithmic(series.values) else ""
        first, last = series.steps[0], series.steps[-1]
        key = [
            f"<a href='#{code}'>{escape(code)}</a> {since(number(step), language)}"
            for step, code in marks
            if first <= step <= last
        ]
        dashed = (
            f"<br><span class='critical'>{label('dashed', language)}{mark(':', language)}{', '.join(key)}</span>"
            if key
            else ""
        )
        caption = f"<figcaption>{escape(name)}{scale}{dashed}</figcaption>"
        yield f"<figure id='{_anchor(i)}'>{caption}{_svg(series, marks)}</figure>"


def _svg(series: Series, marks: Sequence[tuple[float, str]]) -> str:
    log = _logarithmic(series.values)
    steps, values = _thinned(series)
    heights = [stats.log10(v) for v in values] if log else values
    low, high = min(heights), max(heights)
    span = (high - low) or 1.0
    first, last = series.steps[0], series.steps[-1]
    width = (last - first) or 1.0

    def x(step: float) -> float:
        return _LEFT + (step - first) / width * (_WIDTH - _LEFT - 8)

    def y(height: float) -> float:
        return _HEIGHT - _BOTTOM - (height - low) / span * (_HEIGHT - _BOTTOM - _TOP)

    path = " ".join(f"{x(s):.1f},{y(h):.1f}" for s, h in zip(steps, heights, strict=True))
    lines = "".join(
        f"<line x1='{x(step):.1f}' x2='{x(step):.1f}' y1='{_TOP}' y2='{_HEIGHT - _BOTTOM}' stroke='var(--critical)' "
        f"stroke-dasharray='4 3'><title>{escape(code)} @ {number(step)}</title></line>"
        for step, code in marks
        if first <= step <= last
    )
    ticks = [low, (low + high) / 2, high] if high > low else [low]
    labels = "".join(
        f"<text x='4' y='{min(y(tick) + 4, _HEIGHT - _BOTTOM):.1f}'>{10**tick if log else tick:.3g}</text>"
        for tick in ticks
    )
    return (
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='{escape(series.name)}'>"
        f"<line x1='{_LEFT}' x2='{_WIDTH - 8}' y1='{_HEIGHT - _BOTTOM}' y2='{_HEIGHT - _BOTTOM}' stroke='var(--line)'/>"
        f"<polyline points='{path}' fill='none' stroke='var(--curve)' stroke-width='1.6'/>{lines}"
        f"{labels}"
        f"<text x='{_LEFT}' y='{_HEIGHT - 6}'>{number(first)}</text>"
        f"<text x='{_WIDTH - 8}' y='{_HEIGHT - 6}' text-anchor='end'>{number(last)}</text></svg>"
    )


def _logarithmic(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > 50


def _thinned(series: Series) -> tuple[list[float], list[float]]:
    """At most a few hundred points, peaks kept: of each stretch the reading farthest from the stretch's mean."""
    n = len(series)
    if n <= _POINTS:
        return series.steps, series.values
    steps, values = [], []
    for i in range(_POINTS):
        a, b = i * n // _POINTS, (i + 1) * n // _POINTS
        centre = sum(series.values[a:b]) / (b - a)
        at = max(range(a, b), key=lambda j: abs(series.values[j] - centre))
        steps.append(series.steps[at])
        values.append(series.values[at])
    return steps, values


def _unread(report: Report, language: Language) -> Iterator[str]:
    if report.log.unread.count:
        rows = "".join(
            f"<tr><td>{sample['line'] or ''}</td><td>{escape(in_language_of(sample['why'], language))}</td></tr>"
            for sample in report.log.unread.to_json()
        )
        yield f"<section class='card'><h2>{label('unread', language)}</h2><table>{rows}</table></section>"
