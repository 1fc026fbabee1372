"""The page: sections in order, figures as data, the drawing library inlined, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from levelhead import extensions
from levelhead import metrics as metric
from levelhead.diagnosis.findings import Language
from levelhead.documents.plotly import plotly_script
from levelhead.errors import InputError
from levelhead.report import cards, fronts, kinds, notes, samples, strata
from levelhead.report.charts import Chart, Key
from levelhead.report.language import translator_of
from levelhead.report.markup import duration, esc, json_for_script, tag
from levelhead.report.outlook import outlook
from levelhead.report.panels import PANELS, TIMES, event_strip
from levelhead.report.reading import Run, read_run, step_of
from levelhead.report.samples import first_steps
from levelhead.report.series import series

FILE_NAME = "report.html"
"""Name of the page in the run's folder."""

Section = tuple[str, list[Chart]]
"""Markup of a section, and the figures that stand in it."""

Part = TypeVar("Part")

MOST_MARKS = 12
"""Guard actions marked on the charts; more than that would hide the curves."""


def write(run_dir: Path, language: Language = "en") -> Path:
    """Write ``report.html`` from a run's plain files, whole or not at all.

    Args:
        run_dir: Folder of the run; files that are missing or broken leave their part of the page out.
        language: Of the page's own words.

    Returns:
        Path of the page.

    Raises:
        InputError: The folder is missing, holds no run, or cannot be written to.
    """
    page = render(read_run(run_dir), language)
    target = run_dir / FILE_NAME
    draft = target.with_suffix(".html.part")
    try:
        draft.write_text(page, encoding="utf-8", errors="replace")
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise InputError(f"{target}: cannot be written ({error.strerror or error})") from error
    return target


def render(run: Run, language: Language = "en") -> str:
    """Return the page of a run as one HTML document.

    A section that a damaged folder makes impossible is left out, and :attr:`Run.notes` say which.

    Args:
        run: What a run left behind.
        language: Of the page's own words.
    """
    charts: list[Chart] = []
    sections: list[tuple[str, str]] = []
    nothing: Section = ("", [])
    for title, build in _sections(_or(run, "the marks of events", [], lambda: _marks(run))).items():
        body, drawn = _or(run, f"the section {title!r}", nothing, partial(_checked, run, build))
        charts += drawn
        if body:
            sections.append((title, body))
    translator = translator_of(run, language)
    figures = [translator.figure(chart.figure()) for chart in charts]
    return translator.page(_document(run, sections, figures, _header(run, language)))


def _or(run: Run, what: str, instead: Part, build: Callable[[], Part]) -> Part:
    """Build a part of the page; where its files are damaged beyond what is foreseen, say so and go on without it."""
    try:
        return build()
    except Exception as error:
        run.notes.append(
            f"{what} could not be drawn ({type(error).__name__}): the files that it is made of are damaged"
        )
        return instead


def _checked(run: Run, build: Callable[[Run], Section]) -> Section:
    """The section, if its figures can be written as data."""
    section = build(run)
    json_for_script([chart.figure() for chart in section[1]])
    return section


def _sections(marks: list[tuple[int, str]]) -> dict[str, Callable[[Run], Section]]:
    """What the page holds, in order."""

    def panel(title: str, above: Callable[[Run], str] = lambda _: "") -> Callable[[Run], Section]:
        def build(run: Run) -> Section:
            drawn = _built(run, PANELS[title])
            drawn = [chart.with_marks(marks) if chart.id not in ("held-out", "sft-loss") else chart for chart in drawn]
            return (above(run) if drawn else "") + _grid(drawn), drawn

        return build

    def grid(
        draw: Callable[[Run], list[Chart]], above: Callable[[Run], str] = lambda _: ""
    ) -> Callable[[Run], Section]:
        def build(run: Run) -> Section:
            drawn = draw(run)
            return above(run) + _grid(drawn), drawn

        return build

    def words(write: Callable[[Run], str]) -> Callable[[Run], Section]:
        return lambda run: (write(run), [])

    return {
        "Strata and baseline": _by_stratum,
        "Pareto front": grid(fronts.charts, fronts.table),
        "Learning": panel("Learning", lambda _: _about_marks(marks)),
        "The tasks' own metrics": grid(cards.own_metrics),
        "Answers and prompts": panel("Answers and prompts"),
        "Policy": panel("Policy"),
        "Updates": panel("Updates"),
        "Time": panel("Time", _time_shares),
        "Kinds of problem": grid(lambda run: [chart.with_marks(marks) for chart in kinds.charts(run)], kinds.table),
        **{title: _of_extension(title) for title in extensions.names("sections")},
        "Judges": words(notes.judges),
        "Before and after": words(samples.before_and_after),
        "While training": words(samples.while_training),
        "Events": _events,
        "Preflight": words(notes.checks),
        "First steps": words(first_steps),
        "More metrics": words(notes.further_metrics),
        "Recipe": words(notes.recipe),
        "Environment": words(notes.environment),
    }


def _by_stratum(run: Run) -> Section:
    drawn = strata.charts(run)
    return _strata(strata.tables(run), drawn), list(drawn.values())


def _of_extension(title: str) -> Callable[[Run], Section]:
    """A section that a package adds; its charts stand under its markup."""

    def build(run: Run) -> Section:
        markup, drawn = extensions.load("sections", title)(run)
        return markup + _grid(drawn), drawn

    return build


def _events(run: Run) -> Section:
    strip = event_strip(run)
    drawn = [strip] if strip else []
    return _grid(drawn) + notes.events(run), drawn


def _built(run: Run, builders: tuple[Callable[[Run], Chart | list[Chart] | None], ...]) -> list[Chart]:
    charts: list[Chart] = []
    for build in builders:
        built = build(run)
        charts += built if isinstance(built, list) else [built] if built is not None else []
    return charts


def _document(run: Run, sections: list[tuple[str, str]], drawn: list[dict[str, Any]], header: str) -> str:
    links = "".join(tag("a", esc(title), href=f"#{_anchor(title)}") for title, _ in sections)
    body = "".join(tag("section", tag("h2", esc(title)), inner, id=_anchor(title)) for title, inner in sections)
    folder = files("levelhead.report")
    style = folder.joinpath("style.css").read_text(encoding="utf-8")
    drawing = ""
    if drawn:
        library = plotly_script()
        figures = json_for_script(drawn)
        script = folder.joinpath("page.js").read_text(encoding="utf-8")
        drawing = (
            "<noscript><p>The charts of this page are drawn by a script.</p></noscript>"
            f'<script type="application/json" id="figures">{figures}</script>'
            f"<script>{library}</script><script>{script}</script>"
        )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # The page needs nothing from elsewhere, and text from a model must not be able to fetch anything.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data: blob:; font-src data:\">"
        f'<link rel="icon" href="data:,"><title>{esc(run.name)} \u00b7 Levelhead</title><style>{style}</style></head>'
        f"<body>{header}<nav><div>{links}</div></nav><main>{body}</main>"
        f"<footer>{notes.missing(run)}<p>Written by Levelhead from the plain files in this folder.</p></footer>"
        f"{drawing}</body></html>\n"
    )


def _header(run: Run, language: Language) -> str:
    return tag(
        "header",
        tag("h1", esc(run.name)),
        tag("p", esc(" \u00b7 ".join(_what(run))), cls="muted"),
        tag("p", _or(run, "the headline", "", lambda: cards.headline(run)), cls="lead"),
        _or(run, "the first screen", "", lambda: outlook(run, language)),
        _or(run, "the strip of facts", "", lambda: cards.facts(run)),
        _or(run, "the cards of the tasks", "", lambda: cards.task_cards(run)),
    )


def _what(run: Run) -> list[str]:
    model = run.recipe.get("model")
    parts = []
    if isinstance(model, dict):
        parts.append(str(model.get("name") or f"{model.get('preset')} model"))
        if isinstance(model.get("lora"), dict):
            parts.append(f"LoRA r={model['lora'].get('r')}")
    if run.tasks:
        parts.append(", ".join(run.tasks))
    if run.recipe.get("seed") is not None:
        parts.append(f"seed {run.recipe['seed']}")
    return parts


def _grid(charts: list[Chart]) -> str:
    if not charts:
        return ""
    # An odd chart at the end takes the whole row instead of leaving a hole.
    narrow = [chart for chart in charts if not chart.wide]
    lonely = narrow[-1].id if len(narrow) % 2 else None
    return tag("div", *[_chart(chart, wide=chart.wide or chart.id == lonely) for chart in charts], cls="grid")


def _chart(chart: Chart, *, wide: bool) -> str:
    identifier = _anchor(chart.id)
    parts = [tag("h3", esc(chart.title)), tag("p", esc(chart.hint), cls="muted") if chart.hint else ""]
    if chart.warning:
        parts.append(tag("p", esc(chart.warning), cls="alert"))
    if chart.legend:
        parts.append(tag("div", *[_legend(chart.id, entry) for entry in chart.legend], cls="legend"))
    parts.append(
        tag("div", cls="plot", id=f"plot-{chart.id}", data_height=str(chart.height), style=f"height:{chart.height}px")
    )
    return tag("article", *parts, cls="chart wide" if wide else "chart", id=f"chart-{identifier}")


def _legend(chart: str, entry: Key) -> str:
    colour = f"var(--{entry.colour.removeprefix('$').split('/')[0]})"
    line = tag("i", cls="dash" if entry.dash else "", style=f"background:{colour};border-color:{colour}")
    return tag(
        "button", line, esc(entry.label), type="button", data_chart=chart, data_group=entry.label, aria_pressed="true"
    )


def _time_shares(run: Run) -> str:
    """Where the whole run's time went, as one bar."""
    rows = [row for row in run.metrics if row.get("stage") in ("sft", "grpo")]
    seconds = [(name.removeprefix(metric.TIME), colour, sum(series(rows, name).finite)) for name, colour in TIMES]
    whole = sum(series(rows, metric.STEP_TIME).finite)
    rest = whole - sum(part for _, _, part in seconds)
    if rest > 0.01 * whole:
        seconds.append(("other", "muted", rest))
    seconds = [entry for entry in seconds if entry[2] > 0]
    total = sum(part for _, _, part in seconds)
    if total <= 0:
        return ""
    bars = [
        tag(
            "span",
            esc(f"{name} {part / total:.0%}") if part > 0.06 * total else "",
            title=f"{name}: {duration(part)}",
            style=f"flex:{part / total:.4f} 1 0;background:var(--{colour})",
        )
        for name, colour, part in seconds
    ]
    return tag("div", *bars, cls="share")


def _strata(tables: dict[str, str], drawn: dict[str, Chart]) -> str:
    """Each task's table beside its chart."""
    note = (
        "What each kind of prompt scores, and what the best answer scores that is the same to every prompt: chosen on "
        "one half of the items, scored on the other. A policy that reads must stand above it. SE: standard errors."
    )
    rows = [
        tag("div", table, _chart(drawn[task], wide=False) if task in drawn else "", cls="beside")
        for task, table in tables.items()
    ]
    return tag("p", note, cls="aside") + "".join(rows) if rows else ""


def _about_marks(marks: list[tuple[int, str]]) -> str:
    return tag("p", "Dotted vertical lines: steps at which the guard acted.", cls="aside") if marks else ""


def _marks(run: Run) -> list[tuple[int, str]]:
    acted = [event for event in run.events if event.get("action") not in (None, "warn")]
    tones = {"critical": "$bad", "warning": "$warn"}
    marks = [(step_of(event), tones.get(str(event.get("severity")), "$muted")) for event in acted]
    return list(dict.fromkeys(marks))[:MOST_MARKS]


def _anchor(title: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in title.lower())
