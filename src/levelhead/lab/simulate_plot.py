"""The plot of a simulation: one self-contained HTML page, readable without a network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from levelhead.documents.plotly import plotly_script
from levelhead.lab.simulate import LEVELS, Result

FAILED, SOLVED, MIXED, SAMPLES, SIGNAL, SPREAD = "#c0392b", "#2e8b57", "#8a8a8a", "#1f5fa8", "#d98a00", "#5a4fcf"
COLUMNS = ("what a group is", "what a rollout is worth", "advantages")
_WIDTHS = ((0.0, 0.27), (0.36, 0.62), (0.74, 1.0))
"""Where the three panels of a row stand, in shares of the page."""
_GAP = 0.3
"""Share of a row's height that is left for its titles."""


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
    drawn = json.dumps(figure(results)).replace("<", "\\u003c")
    path.write_text(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>levelhead simulate</title></head><body>'
        f'<div id="plot"></div><script>{plotly_script()}</script><script>const figure = {drawn};'
        'Plotly.newPlot("plot", figure.data, figure.layout, {responsive: true});</script></body></html>\n',
        encoding="utf-8",
    )


def figure(results: Sequence[Result]) -> dict[str, Any]:
    """Return the figure that :func:`write_plot` writes, as Plotly's ``data`` and ``layout``."""
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "title": {"text": "levelhead simulate"},
        "barmode": "stack",
        "height": 360 * len(results) + 80,
        "legend": {"orientation": "h", "yanchor": "top", "y": -0.25 / len(results)},
        "annotations": [],
    }
    for row, result in enumerate(results):
        top = 1 - row / len(results)
        height = (1 - _GAP) / len(results)
        for column, (title, draw) in enumerate(zip(COLUMNS, (_groups, _worth, _advantages), strict=True)):
            left, right = _WIDTHS[column]
            number = 4 * row + column + 1  # the fourth is the second y axis of the panel in the middle
            traces, axes = draw(result)
            layout[f"xaxis{number}"] = {
                "domain": [left, right], "anchor": f"y{number}", "type": "category", "title": {"text": "group size K"},
            }  # fmt: skip
            layout[f"yaxis{number}"] = {"domain": [top - height, top], "anchor": f"x{number}", **axes[0]}
            if axes[1:]:
                second = {"overlaying": f"y{number}", "side": "right", "anchor": f"x{number}"}
                layout[f"yaxis{4 * row + 4}"] = second | axes[1]
            for trace in traces:
                axis = 4 * row + 4 if trace.pop("second", False) else number
                data.append(trace | {"xaxis": f"x{number}", "yaxis": f"y{axis}", "showlegend": row == 0})
            text = f"{result.outcomes.label}, {result.setup.estimator}: {title}"
            layout["annotations"].append({
                "text": text, "x": (left + right) / 2, "y": top, "xref": "paper", "yref": "paper", "yanchor": "bottom",
                "showarrow": False, "font": {"size": 13},
            })  # fmt: skip
    return {"data": data, "layout": layout}


def _trace(result: Result, name: str, colour: str, values: Sequence[float], **keys: Any) -> dict[str, Any]:
    sizes = [str(row.k) for row in result.rows]
    marker = {"color": colour}
    return {"x": sizes, "y": list(values), "name": name, "marker": marker, "line": marker, "legendgroup": name, **keys}


def _groups(result: Result) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows = result.rows
    shares = (
        ("all failed", FAILED, [row.all_failed for row in rows]),
        ("all solved", SOLVED, [row.all_solved for row in rows]),
        ("equal otherwise", MIXED, [max(0.0, row.dead - row.all_failed - row.all_solved) for row in rows]),
    )
    bars = [_trace(result, name, colour, values, type="bar") for name, colour, values in shares]
    return bars, [{"title": {"text": "share of groups"}, "range": [0, 1]}]


def _worth(result: Result) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    efficiency, signal = (
        [getattr(row, name) for row in result.rows] for name in ("efficiency", "signal_per_1k_tokens")
    )
    lines = [
        _trace(result, "efficiency", SAMPLES, efficiency, type="scatter", mode="lines+markers"),
        _trace(result, "signal per 1k tokens", SIGNAL, signal, type="scatter", mode="lines+markers", second=True),
    ]
    first = {"title": {"text": "efficiency"}, "range": [0, 1]}
    return lines, [first, {"title": {"text": "signal per 1k tokens"}, "rangemode": "tozero"}]


def _advantages(result: Result) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The median with two ranges: thick for the middle half, thin for nine in ten."""
    low, first, median, third, high = zip(*(row.quantiles for row in result.rows), strict=True)
    ranges = ((f"advantage, {LEVELS[0]:.0%} to {LEVELS[-1]:.0%}", low, high, 1), ("its middle half", first, third, 7))
    traces = []
    for name, below, above, width in ranges:
        bars = {
            "type": "data", "symmetric": False, "thickness": width, "width": 0 if width > 1 else 6, "color": SPREAD,
            "array": [top - middle for top, middle in zip(above, median, strict=True)],
            "arrayminus": [middle - bottom for bottom, middle in zip(below, median, strict=True)],
        }  # fmt: skip
        traces.append(_trace(result, name, SPREAD, median, type="scatter", mode="markers", error_y=bars))
    return traces, [{"title": {"text": "advantage"}, "zeroline": True}]
