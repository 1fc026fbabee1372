"""What a chart is, and the few kinds of trace that the report draws.

Colours are names (``$task-0``, ``$good/0.3``) that the page turns into those of the reader's light or dark theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from levelhead.report.series import Series, compact, on_steps, smooth, thin, thin_together

TASK_COLOURS = 8
"""Colours that the palette has for tasks and other categories; more than that begin again."""


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a chart's legend; its label is the group of the traces that it shows and hides."""

    label: str
    colour: str
    dash: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure with its words.

    Attributes:
        id: Anchor on the page.
        title: What is drawn.
        hint: How to read it, one line.
        data: Plotly traces.
        layout: Plotly layout, without colours and fonts.
        legend: Legend entries; none for a single curve.
        height: Height in pixels.
        wide: Whether it takes the whole width of the page.
        warning: Something about the numbers that the eye would miss.
    """

    id: str
    title: str
    hint: str
    data: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)
    legend: list[Key] = field(default_factory=list)
    height: int = 250
    wide: bool = False
    warning: str = ""

    def figure(self) -> dict[str, Any]:
        """Return what the page's script draws."""
        return {"id": self.id, "data": self.data, "layout": self.layout}

    def with_marks(self, marks: Sequence[tuple[int, str]]) -> Chart:
        """Return the chart with a thin vertical line at each (step, colour)."""
        shapes = [
            {
                "type": "line",
                "xref": "x",
                "yref": "paper",
                "x0": step,
                "x1": step,
                "y0": 0,
                "y1": 1,
                "layer": "below",
                "line": {"color": colour, "width": 1, "dash": "dot"},
            }
            for step, colour in marks
        ]
        return replace(self, layout={**self.layout, "shapes": [*self.layout.get("shapes", []), *shapes]})


def categories(labels: Sequence[str]) -> dict[str, Any]:
    """Return a vertical axis of names, the first one on top, with room for each."""
    names = [plain(label) for label in labels[::-1]]
    return {"type": "category", "categoryarray": names, "range": [-0.6, len(names) - 0.4], "automargin": True}


def task_colour(index: int) -> str:
    """Return the palette's colour of the index-th task."""
    return f"$task-{index % TASK_COLOURS}"


def curve_traces(curve: Series, label: str, colour: str) -> list[dict[str, Any]]:
    """Draw a noisy metric: the raw curve faint, its moving mean on top."""
    raw, mean = thin(curve), thin(smooth(curve))
    if len(curve.steps) < 12:
        return [line_trace(raw, label, colour, markers=True)]
    return [
        {**line_trace(raw, label, f"{colour}/0.3", width=1.2), "legendgroup": label},
        {**line_trace(mean, label, colour, width=2.4), "hoverinfo": "skip", "hovertemplate": None},
    ]


def line_trace(
    curve: Series, label: str, colour: str, *, width: float = 2, markers: bool = False, dash: str = "solid"
) -> dict[str, Any]:
    """Draw a curve as it is."""
    return {
        "type": "scatter",
        "mode": "lines+markers" if markers else "lines",
        "x": curve.steps,
        "y": [compact(value) for value in curve.values],
        "name": label,
        "legendgroup": label,
        "line": {"color": colour, "width": width, "dash": dash, "shape": "linear"},
        "marker": {"color": colour, "size": 7},
        "hovertemplate": f"{plain(label)} %{{y:.4g}}<extra></extra>",
    }


def point_trace(
    points: Sequence[tuple[Any, Any]], label: str, colour: str, hover: str, *, size: int = 11, symbol: str = "circle"
) -> dict[str, Any]:
    """Draw (x, y) as single marks; ``hover`` is what a pointer shows of one, as a template of Plotly's."""
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "name": label,
        "legendgroup": label,
        "marker": {"color": colour, "size": size, "symbol": symbol},
        "hovertemplate": f"{hover}<extra></extra>",
    }


def area_traces(curves: Sequence[tuple[Series, str, str]]) -> list[dict[str, Any]]:
    """Stack (curve, label, colour) as areas, a missing value counting as nothing."""
    stacked = _stackable([curve for curve, _, _ in curves])
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "all",
            "x": curve.steps,
            "y": [compact(value) for value in curve.values],
            "name": label,
            "legendgroup": label,
            "line": {"color": colour, "width": 1.2},
            "fillcolor": f"{colour}/0.45",
            "hovertemplate": f"{plain(label)} %{{y:.3g}}<extra></extra>",
        }
        for curve, (_, label, colour) in zip(stacked, curves, strict=True)
    ]


def bar_traces(curves: Sequence[tuple[Series, str, str]]) -> list[dict[str, Any]]:
    """Stack (curve, label, colour) as bars, a missing value counting as nothing."""
    stacked = _stackable([curve for curve, _, _ in curves])
    return [
        {
            "type": "bar",
            "x": curve.steps,
            "y": [compact(value) for value in curve.values],
            "name": label,
            "legendgroup": label,
            "marker": {"color": colour, "line": {"width": 0}},
            "hovertemplate": f"{plain(label)} %{{y:.3g}}<extra></extra>",
        }
        for curve, (_, label, colour) in zip(stacked, curves, strict=True)
    ]


def plain(label: str) -> str:
    """Make a name safe inside a Plotly template, which knows a little HTML and ``%{...}``."""
    return label.replace("&", "&amp;").replace("<", "&lt;").replace("%{", "% {")


def broken_steps(curves: Sequence[Series]) -> str:
    """Say at which steps a metric was NaN or infinite; empty where none was."""
    notes = []
    for curve in curves:
        if steps := curve.broken_steps:
            shown = ", ".join(map(str, steps[:5])) + (f" and {len(steps) - 5} more" if len(steps) > 5 else "")
            notes.append(f"{curve.name} is not finite at step {shown}")
    return "; ".join(notes)


def _stackable(curves: Sequence[Series]) -> list[Series]:
    steps = sorted({step for curve in curves for step in curve.steps})
    return thin_together([on_steps(curve, steps) for curve in curves])
