"""Tasks that hold several of their own, such as the pages of the browser task: success and share of each."""

from __future__ import annotations

from levelhead import metrics as metric
from levelhead.metrics import held_out
from levelhead.report import markup
from levelhead.report.cards import STAGE_NAMES
from levelhead.report.charts import Chart, Key, area_traces, bar_traces, curve_traces, line_trace, plain, task_colour
from levelhead.report.markup import tag
from levelhead.report.panels import evaluations
from levelhead.report.reading import EVAL_STAGES, Run
from levelhead.report.series import Series, names_under, number, series

_SHARE = {"tickformat": ".0%", "range": [0, 1]}
_SUCCESS = held_out.PAGE_SUCCESS.suffix
_MOST_CURVES = 12
"""Kinds drawn as curves; the table holds all of them."""


def table(run: Run) -> str:
    """Return held-out success by kind and stage, and the turns of the last stage, as markup; empty without kinds."""
    rows = []
    stages: list[str] = []
    for task, entry in run.summary_tasks.items():
        metrics = {
            stage: entry[stage].get("metrics", {}) for stage in EVAL_STAGES if isinstance(entry.get(stage), dict)
        }
        metrics = {stage: values for stage, values in metrics.items() if isinstance(values, dict)}
        stages = stages or list(metrics)
        names = dict.fromkeys(n for values in metrics.values() for n in values if n.endswith(_SUCCESS))
        for name in names:
            kind = name.removesuffix(_SUCCESS)
            percents = [_percent(number(metrics.get(stage, {}).get(name))) for stage in stages]
            turns = number(metrics[list(metrics)[-1]].get(held_out.PAGE_STEPS.of(kind)))
            rows.append([f"{task}/{kind}", *percents, "" if turns is None else f"{turns:.1f}"])
    if not rows:
        return ""
    heads = ["kind", *(STAGE_NAMES[stage] for stage in stages), "turns at the end"]
    return tag("h3", "Held-out success", cls="sub") + markup.table(heads, rows)


def charts(run: Run) -> list[Chart]:
    """Return success by kind over the steps, and what a curriculum makes of it; none for a run without kinds."""
    return [chart for chart in (_held_out(run), _estimated_success(run), _drawn(run)) if chart is not None]


def _held_out(run: Run) -> Chart | None:
    points = evaluations(run, "grpo" if run.lines("grpo") else "sft")
    names = [
        name
        for task in run.tasks
        for name in names_under(points, f"{held_out.NUMBER.prefix}{task}/", _SUCCESS)
        if name.removesuffix(_SUCCESS) != f"{held_out.NUMBER.prefix}{task}"
    ][:_MOST_CURVES]
    labels = [plain(name.removeprefix(held_out.NUMBER.prefix).removesuffix(_SUCCESS)) for name in names]
    if not names:
        return None
    data = [
        line_trace(series(points, name), label, task_colour(i), markers=True)
        for i, (name, label) in enumerate(zip(names, labels, strict=True))
    ]
    legend = [Key(label, task_colour(i)) for i, label in enumerate(labels)]
    hint = "Share of the problems of each kind that were solved; problems never trained on."
    return Chart("kinds-held-out", "Held-out success by kind", hint, data, {"yaxis": _SHARE}, legend, wide=True)


def _estimated_success(run: Run) -> Chart | None:
    """What the curriculum takes each kind's success to be."""
    curves = _curves(run, metric.CURRICULUM_SUCCESS.prefix)
    data = [trace for label, curve, colour in curves for trace in curve_traces(curve, label, colour)]
    legend = [Key(label, colour) for label, _, colour in curves]
    hint = "Recent success of each kind as the curriculum knows it before the step; a kind it has not tried has 50%."
    return (
        Chart("kinds-known", "Success that the curriculum sees", hint, data, {"yaxis": _SHARE}, legend)
        if data
        else None
    )


def _drawn(run: Run) -> Chart | None:
    """The share of each kind in the draws, stacked."""
    curves = _curves(run, metric.CURRICULUM_SHARE.prefix)
    if not curves:
        return None
    layers = [(curve, label, colour) for label, curve, colour in curves]
    legend = [Key(label, colour) for label, _, colour in curves]
    hint = "What is solved or hopeless is drawn less, in proportion to p(1 - p) of its success."
    draw = area_traces if len({step for _, curve, _ in curves for step in curve.steps}) > 1 else bar_traces
    return Chart("kinds-drawn", "What the curriculum draws", hint, draw(layers), {"yaxis": _SHARE}, legend)


def _curves(run: Run, prefix: str) -> list[tuple[str, Series, str]]:
    rows = run.lines("grpo")
    names = names_under(rows, prefix)[:_MOST_CURVES]
    return [(plain(name.removeprefix(prefix)), series(rows, name), task_colour(i)) for i, name in enumerate(names)]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
