"""Held-out scores stratum by stratum and stage by stage, beside what the best constant answer gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levelhead.report.cards import STAGE_COLOURS, STAGE_NAMES
from levelhead.report.charts import Chart, Key, categories, plain, point_trace
from levelhead.report.markup import esc, signed, tag
from levelhead.report.reading import Run
from levelhead.report.scores import Score, Stage, measured, stages_of, strata_names, telling

BALANCED, ALL = "balanced score", "all items"
CONSTANT = "best constant answer"
MOST_WITH_METRICS = 12
"""Strata up to which the table holds each one's own metrics."""

_NOTHING = "(nothing at all)"


def tables(run: Run) -> dict[str, str]:
    """Return a table a task, and the text of its best constant answer, as markup; none for a task without either."""
    stages_by_task = {task: stages_of(stages) for task, stages in run.summary_tasks.items()}
    return {
        task: tag("div", tag("h3", esc(task)), _table(stages), _answer(stages), cls="card measured")
        for task, stages in stages_by_task.items()
        if strata_names(stages) or any(stage.constant for stage in stages)
    }


def charts(run: Run) -> dict[str, Chart]:
    """Return a chart a task that has strata: each one's score by stage, and a line at the best constant answer."""
    stages_by_task = {task: stages_of(stages) for task, stages in run.summary_tasks.items()}
    return {task: _chart(task, stages) for task, stages in stages_by_task.items() if strata_names(stages)}


def _table(stages: Sequence[Stage]) -> str:
    against = measured(stages)
    heads = ["", "items", *[STAGE_NAMES[stage.name] for stage in stages], *(["constant answer"] if against else [])]
    rows: list[str] = []
    names = strata_names(stages)
    for name in names:
        own = [stage.strata.get(name) for stage in stages]
        n = next((stratum.n for stratum in reversed(own) if stratum is not None), None)
        scores = [None if stratum is None else stratum.score for stratum in own]
        rows.append(_row(name, [*map(_score, scores), *_beside(against, name)], n=n))
        metrics = [{} if stratum is None else stratum.metrics for stratum in own]
        rows += _metrics(metrics, against) if len(names) <= MOST_WITH_METRICS else []
    if any(stage.balanced for stage in stages) and names:
        rows.append(_row(BALANCED, [*[_score(stage.balanced) for stage in stages], *_even(against)], cls="strong"))
    whole = [_score(against.constant)] if against else []
    rows.append(_row(ALL, [*[_score(stage.score) for stage in stages], *whole], n=stages[-1].n))
    if against is not None:
        over = [_over(stage.over_constant) for stage in stages]
        rows.append(_row("above the constant", [*over, ""]))
    return tag("div", tag("table", tag("tr", *[tag("th", esc(head)) for head in heads]), *rows), cls="scroll strata")


def _beside(against: Stage | None, name: str) -> list[str]:
    """The cell of the best constant answer's column, where there is such a column."""
    if against is None:
        return []
    return [_score(against.strata[name].constant) if name in against.strata else ""]


def _even(against: Stage | None) -> list[str]:
    """The same cell where each stratum counts alike."""
    if against is None:
        return []
    return [_score(against.baseline) if against.over_balanced is not None else ""]


def _row(label: str, cells: Sequence[str], n: int | None = None, cls: str = "") -> str:
    breakable = esc(label).replace("=", "=<wbr>")
    count = "" if n is None else str(n)
    return tag("tr", tag("td", breakable), tag("td", count), *[tag("td", esc(cell)) for cell in cells], cls=cls)


def _metrics(rows: Sequence[Mapping[str, float]], against: Stage | None) -> list[str]:
    last = [""] if against else []
    return [
        _row(name, [*[f"{row[name]:.1%}" if name in row else "" for row in rows], *last], cls="metric")
        for name in telling(rows)
    ]


def _answer(stages: Sequence[Stage]) -> str:
    """The constant answer itself: it is what a policy that reads nothing would write."""
    last = measured(stages)
    if last is None:
        return ""
    text = tag("pre", esc(last.answer if last.answer.strip() else _NOTHING))
    return tag("p", f"The best constant answer {STAGE_NAMES[last.name]}, the same to every prompt:", cls="aside") + text


def _chart(task: str, stages: Sequence[Stage]) -> Chart:
    names = strata_names(stages)
    labels = [*names, *([BALANCED] if any(stage.balanced for stage in stages) else [])]
    data: list[dict[str, Any]] = []
    for stage in stages:
        scores = {name: stratum.score for name, stratum in stage.strata.items()}
        if stage.balanced is not None:
            scores[BALANCED] = stage.balanced
        data.append(_points(STAGE_NAMES[stage.name], STAGE_COLOURS[stage.name], scores, labels))
    legend = [Key(STAGE_NAMES[stage.name], STAGE_COLOURS[stage.name]) for stage in stages]
    if (against := measured(stages)) is not None:
        own = {name: stratum.constant for name, stratum in against.strata.items() if stratum.constant is not None}
        data.append(_diamonds(own, labels) if own else _line(against.constant, labels))
        legend.append(Key(CONSTANT, "$warn", dash=not own))
    layout = {
        "yaxis": categories(labels),
        "xaxis": {"zeroline": True},
        "hovermode": "closest",
    }
    hint = "Score by stratum and stage; bars: two standard errors to either side."
    return Chart(f"strata-{task}", "By stratum", hint, data, layout, legend, height=_height(stages, len(labels)))


def _height(stages: Sequence[Stage], labels: int) -> int:
    """As tall as the table beside it, and never so low that names overlap."""
    names = strata_names(stages)
    shown = [telling([stage.strata[name].metrics for stage in stages if name in stage.strata]) for name in names]
    below = sum(map(len, shown)) if len(names) <= MOST_WITH_METRICS else 0
    return max(110 + 30 * labels, 60 + 28 * (labels + below + 2))


def _points(label: str, colour: str, scores: Mapping[str, Score], labels: Sequence[str]) -> dict[str, Any]:
    shown = [name for name in labels if name in scores]
    points = [(scores[name].value, plain(name)) for name in shown]
    errors = [2 * (scores[name].se or 0.0) for name in shown]
    bars = {"type": "data", "array": errors, "color": f"{colour}/0.5", "thickness": 2, "width": 4}
    return {**point_trace(points, label, colour, f"{label} %{{x:.3f}}"), "error_x": bars}


def _diamonds(scores: Mapping[str, Score], labels: Sequence[str]) -> dict[str, Any]:
    """What the best constant answer to all prompts scores on those of each stratum."""
    drawn = _points(CONSTANT, "$warn", scores, labels)
    return {**drawn, "marker": {"color": "$warn", "size": 11, "symbol": "diamond-open", "line": {"width": 2}}}


def _line(constant: Score | None, labels: Sequence[str]) -> dict[str, Any]:
    """A dashed line over all categories, at what the best constant answer scores over all items."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [constant.value if constant else 0.0] * len(labels),
        "y": [plain(label) for label in labels],
        "name": CONSTANT,
        "legendgroup": CONSTANT,
        "line": {"color": "$warn", "width": 1.6, "dash": "dash"},
        "hovertemplate": f"{CONSTANT} %{{x:.3f}}<extra></extra>",
    }


def _score(score: Score | None) -> str:
    if score is None:
        return ""
    return signed(score.value) + ("" if score.se is None else f" ± {score.se:.3f}")


def _over(score: Score | None) -> str:
    if score is None or score.errors is None:
        return "" if score is None else signed(score.value)
    errors = abs(score.errors)
    return signed(score.value) + f" ({errors:.{1 if errors < 99.5 else 0}f} SE)"
