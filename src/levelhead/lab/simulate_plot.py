"""The plot of a simulation: one self-contained HTML page, readable without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from levelhead.lab.simulate import LEVELS, Result

if TYPE_CHECKING:
    import plotly.graph_objects as go

FAILED, SOLVED, MIXED, SAMPLES, SIGNAL, SPREAD = "#c0392b", "#2e8b57", "#8a8a8a", "#1f5fa8", "#d98a00", "#5a4fcf"
COLUMNS = ("what a group is", "what a rollout is worth", "advantages")


def write_plot(results: Sequence[Result], path: Path) -> None:
    """Write one row of three panels for each result to an HTML file.

    The panels show, over the group size: the share of groups that all failed, were all solved, or are dead otherwise;
    efficiency and signal per thousand tokens; quantiles of the advantage.

    Args:
        results: Simulations, drawn in this order.
        path: The file, replaced if it exists.

    Raises:
        OSError: The file cannot be written.
    """
    figure(results).write_html(path, include_plotlyjs=True, full_html=True)


def figure(results: Sequence[Result]) -> go.Figure:
    """Return the figure that :func:`write_plot` writes."""
    from plotly.subplots import make_subplots

    titles = [
        f"{result.outcomes.label}, {result.setup.estimator}: {column}" for result in results for column in COLUMNS
    ]
    specs = [[{}, {"secondary_y": True}, {}] for _ in results]
    plot = make_subplots(rows=len(results), cols=3, subplot_titles=titles, specs=specs)
    for row, result in enumerate(results, start=1):
        _group_panel(plot, row, result)
        _worth_panel(plot, row, result)
        _advantage_panel(plot, row, result)
    plot.update_xaxes(title_text="group size K", type="category")
    plot.update_layout(
        barmode="stack",
        template="plotly_white",
        height=360 * len(results) + 80,
        title_text="levelhead simulate",
        legend={"orientation": "h", "yanchor": "bottom", "y": -0.3 / len(results)},
    )
    plot.update_annotations(font_size=13)
    return plot


def _sizes(result: Result) -> list[str]:
    return [str(row.k) for row in result.rows]


def _group_panel(plot: go.Figure, row: int, result: Result) -> None:
    import plotly.graph_objects as go

    shares = {
        "all failed": (FAILED, [r.all_failed for r in result.rows]),
        "all solved": (SOLVED, [r.all_solved for r in result.rows]),
        "equal otherwise": (MIXED, [max(0.0, r.dead - r.all_failed - r.all_solved) for r in result.rows]),
    }
    for name, (color, values) in shares.items():
        bar = go.Bar(x=_sizes(result), y=values, name=name, marker_color=color, legendgroup=name, showlegend=row == 1)
        plot.add_trace(bar, row=row, col=1)
    plot.update_yaxes(title_text="share of groups", range=[0, 1], row=row, col=1)


def _worth_panel(plot: go.Figure, row: int, result: Result) -> None:
    import plotly.graph_objects as go

    lines = (
        ("efficiency", SAMPLES, False, [r.efficiency for r in result.rows]),
        ("signal per 1k tokens", SIGNAL, True, [r.signal_per_1k_tokens for r in result.rows]),
    )
    for name, color, secondary, values in lines:
        line = go.Scatter(
            x=_sizes(result), y=values, name=name, mode="lines+markers", line_color=color, legendgroup=name,
            showlegend=row == 1,
        )  # fmt: skip
        plot.add_trace(line, row=row, col=2, secondary_y=secondary)
    plot.update_yaxes(title_text="efficiency", range=[0, 1], row=row, col=2, secondary_y=False)
    plot.update_yaxes(title_text="signal per 1k tokens", rangemode="tozero", row=row, col=2, secondary_y=True)


def _advantage_panel(plot: go.Figure, row: int, result: Result) -> None:
    import plotly.graph_objects as go

    low, q1, median, q3, high = (list(values) for values in zip(*(r.quantiles for r in result.rows), strict=True))
    name = f"advantage, {LEVELS[0]:.0%} to {LEVELS[-1]:.0%}"
    box = go.Box(
        x=_sizes(result), lowerfence=low, q1=q1, median=median, q3=q3, upperfence=high, name=name,
        marker_color=SPREAD, legendgroup="advantage", showlegend=row == 1,
    )  # fmt: skip
    plot.add_trace(box, row=row, col=3)
    plot.update_yaxes(title_text="advantage", zeroline=True, row=row, col=3)
