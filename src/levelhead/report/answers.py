"""Whether answers depend on prompts, over the steps: what is measured of every batch of rollouts."""

from __future__ import annotations

from levelhead import metrics as metric
from levelhead.report.charts import Chart, key, line_trace, task_colour
from levelhead.report.panels import SHARE, by_task
from levelhead.report.reading import Run
from levelhead.report.series import series, smooth, thin

NAMES = tuple(family.prefix for family in (metric.TOP_SHARE, metric.DISTINCT, metric.INFORMATION, metric.PERFECT_SHARE))
"""Metrics that are drawn here."""


def charts(run: Run) -> list[Chart]:
    """Return the charts of a run that has measured its answers; none for any other."""
    return [chart for chart in (_top_share(run), _information(run), _distinct(run)) if chart is not None]


def _top_share(run: Run) -> Chart | None:
    """One answer to everything, beside how alike perfect answers to the same prompts are."""
    hint = "Share of prompts whose most common answer is the batch's. Near 1, one answer is given to everything."
    chart = by_task(run, metric.TOP_SHARE, "One answer to all prompts", hint, axis={**SHARE, "tickformat": ".0%"})
    if chart is None:
        return None
    rows = run.lines("grpo")
    perfect = [(f"{task}, perfect answers", task_colour(i), metric.PERFECT_SHARE.of(task)) for i, task in _tasks(run)]
    for label, colour, name in perfect:
        curve = thin(smooth(series(rows, name)))
        if curve:
            chart.data.append(line_trace(curve, label, colour, width=1.3, dash="dash"))
            chart.legend.append(key(label, colour, dash=True))
    return chart


def _information(run: Run) -> Chart | None:
    hint = "Information that answers hold of their prompts, in nats. At 0 they do not depend on what was asked."
    return by_task(run, metric.INFORMATION, "What answers tell of prompts", hint)


def _distinct(run: Run) -> Chart | None:
    hint = "Different answers of the batch for each of its prompts, told apart as the task tells them."
    return by_task(run, metric.DISTINCT, "Different answers", hint)


def _tasks(run: Run) -> list[tuple[int, str]]:
    return list(enumerate(run.tasks))
