"""Charts of a policy that writes workflows: what it writes over time, what it uses, and what updates do to it."""

from __future__ import annotations

from levelhead import metrics as metric
from levelhead.contrib.workflow.analysis import Analysis, analyse_run, tasks_of
from levelhead.contrib.workflow.census import STRUCTURES
from levelhead.metrics import held_out
from levelhead.report.charts import Chart, Key, area_traces, bar_traces, line_trace, plain
from levelhead.report.markup import esc, table, tag
from levelhead.report.reading import EVAL_STAGES, Run
from levelhead.report.series import Series

_SHARE = {"tickformat": ".0%", "range": [0, 1]}
_MOST_OPERATORS = 12
MOST_MARKS = 100
"""Collapses marked on the chart; more than that would hide the curve."""


def section(run: Run) -> tuple[str, list[Chart]]:
    """Return the tables of a run whose policy writes workflows, and the charts under them; nothing for other runs."""
    analysis = analysis_of(run)
    return ("", []) if analysis is None else (tables(analysis), charts(analysis))


def analysis_of(run: Run) -> Analysis | None:
    """Return the analysis of a run whose policy writes workflows; ``None`` for any other run."""
    tasks = tasks_of(run.recipe)
    if not tasks:
        return None
    drawn = (row for name, rows in run.rollouts.items() if name.startswith("grpo-") for row in rows)
    held_out = next((run.samples[stage] for stage in reversed(EVAL_STAGES) if run.samples.get(stage)), [])
    return analyse_run(tasks, drawn, run.metrics, held_out)


def tables(analysis: Analysis) -> str:
    """Return the tables of an analysis as markup; those that have no row are left out."""
    shown = [one for one in analysis.tables() if one.rows]
    return "".join(tag("h3", esc(one.title), cls="sub") + table(one.header, one.rows) for one in shown)


def charts(analysis: Analysis) -> list[Chart]:
    """Return the charts of an analysis; none for a run that wrote nothing."""
    if not analysis.batches:
        return []
    panels = [_structures(analysis), _validity(analysis), _variety(analysis)]
    return [*panels, _operators(analysis)] if analysis.overall.operators else panels


def _structures(analysis: Analysis) -> Chart:
    """Answers by structure class, fallbacks included: shares of all answers."""
    steps = list(analysis.batches)
    layers: list[tuple[Series, str, str]] = []
    for place, name in enumerate(STRUCTURES):
        values: list[float | None] = [c.structures[name] * (1.0 - c.fallback) for c in analysis.batches.values()]
        layers.append((Series(name, steps, values), name, f"$task-{place}"))
    fallback: list[float | None] = [census.fallback for census in analysis.batches.values()]
    layers.append((Series(held_out.FALLBACK, steps, fallback), "fallback", "$bad"))
    hint = "Share of answers by the most elaborate structure they show; a fallback holds no workflow."
    legend = [Key(label, colour) for _, label, colour in layers]
    draw = area_traces if len(steps) > 1 else bar_traces
    return Chart("workflow-structures", "Workflow structures", hint, draw(layers), {"yaxis": _SHARE}, legend, wide=True)


def _validity(analysis: Analysis) -> Chart:
    """Validity of each batch, the updates after which more than half of it was lost marked."""
    steps = list(analysis.validity)
    curve = Series(metric.VALIDITY, steps, list(analysis.validity.values()))
    collapse = analysis.collapse
    share = "no update to judge" if collapse.rate is None else f"{collapse.collapsed} of {collapse.updates} updates"
    hint = f"Dotted: an update whose next answers lost more than half of their validity ({share})."
    traces = [line_trace(curve, "valid", "$accent", markers=len(steps) < 60)]
    chart = Chart("workflow-validity", "Validity and updates", hint, traces, {"yaxis": _SHARE})
    return chart.with_marks([(step, "$bad") for step in analysis.collapsed_at][:MOST_MARKS])


def _variety(analysis: Analysis) -> Chart:
    """Entropy of the workflows of each batch that has any."""
    entropy_by_step = {step: census.entropy for step, census in analysis.batches.items() if census.valid}
    curve = Series(held_out.WORKFLOW_ENTROPY, list(entropy_by_step), list(entropy_by_step.values()))
    hint = "Shannon entropy over different workflows, in nats; 0 where all are the same."
    traces = [line_trace(curve, "entropy", "$accent", markers=len(entropy_by_step) < 60)]
    return Chart("workflow-variety", "Variety of workflows", hint, traces, {"yaxis": {"rangemode": "tozero"}})


def _operators(analysis: Analysis) -> Chart:
    """Share of the workflows that use each operator."""
    used = list(analysis.overall.operators.items())[:_MOST_OPERATORS][::-1]
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [share for _, share in used],
        "y": [plain(name) for name, _ in used],
        "marker": {"color": "$accent", "line": {"width": 0}},
        "hovertemplate": "%{y} %{x:.1%}<extra></extra>",
    }
    layout = {"xaxis": _SHARE, "yaxis": {"automargin": True}}
    return Chart(
        "workflow-operators", "Operators", "Share of the workflows that use each at least once.", [trace], layout
    )
