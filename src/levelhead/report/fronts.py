"""The Pareto front of a run: each pair of objectives as a picture, the hypervolume over the steps, and a table."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from levelhead.report.charts import Chart, Key, line_trace, plain, point_trace
from levelhead.report.markup import esc, figure, tag
from levelhead.report.reading import Run, step_of
from levelhead.report.series import Series, number

_MOST_PAIRS = 6
"""Pairs of objectives that are drawn; the table holds all numbers."""
_MOST_ROWS = 40
"""Points in the table: those on the front first."""
_TOO_CLOSE = 0.06
"""Share of an axis by which two points must differ for each to bear its own step."""
_STAGES = {"start": "untrained", "sft": "SFT", "grpo": "GRPO"}


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation, as ``pareto.json`` has it."""

    step: int
    stage: str
    values: tuple[float, ...]
    errors: tuple[float, ...]
    on_front: bool
    chance: float | None
    hypervolume: float | None
    weights: str

    @property
    def label(self) -> str:
        """The step and, for an evaluation between stages, which."""
        return f"step {self.step}, {_STAGES.get(self.stage, self.stage)}"


def charts(run: Run) -> list[Chart]:
    """Return a picture for each pair of objectives, and the hypervolume over the steps; none without a front."""
    names, points = _read(run)
    if len(names) < 2 or not points:
        return []
    pairs = list(itertools.combinations(range(len(names)), 2))[:_MOST_PAIRS]
    drawn = [_picture(run, names, points, x, y) for x, y in pairs]
    return [*drawn, *_volumes(points)]


def table(run: Run) -> str:
    """Return what the front comes to and its points as markup; empty for a run without a front."""
    names, points = _read(run)
    if len(names) < 2 or not points:
        return ""
    volume, error = number(run.pareto.get("hypervolume")), number(run.pareto.get("hypervolume_se"))
    reference = [number(value) for value in _list(run.pareto.get("reference"))]
    sentences = []
    if volume is not None:
        around = "" if error is None else f" \u00b1 {figure(error, 2)}"
        stated = ", ".join(f"{name} {figure(value)}" for name, value in zip(names, reference, strict=False))
        sentences.append(f"Hypervolume {figure(volume)}{around} above the reference point ({stated}).")
    knee = run.pareto.get("knee")
    if isinstance(knee, int):
        sentences.append(f"Knee: step {knee}.")
    sentences.append(
        "On the front is what no other checkpoint beats in every objective. Chance: of being on it, the scores being "
        "drawn again from their standard errors."
    )
    saved = any(point.weights for point in points)
    heads = ["step", "stage", *names, "front", "chance", *(["weights"] if saved else [])]
    shown = sorted(points, key=lambda point: (not point.on_front, point.step))[:_MOST_ROWS]
    rows = [_row(point, saved=saved) for point in shown]
    left_out = f"{len(points) - len(shown)} more are in pareto.json." if len(points) > len(shown) else ""
    head = tag("tr", *[tag("th", esc(cell)) for cell in heads])
    text = tag("p", esc(" ".join([*sentences, left_out]).strip()), cls="aside")
    return text + tag("div", tag("table", head, *rows), cls="scroll evaluations")


def _row(point: Point, *, saved: bool) -> str:
    scores = [f"{value:+.3f} \u00b1 {error:.3f}" for value, error in zip(point.values, point.errors, strict=True)]
    chance = "" if point.chance is None else f"{point.chance:.0%}"
    cells = [str(point.step), _STAGES.get(point.stage, point.stage), *scores]
    cells += ["\u2713" if point.on_front else "", chance, *([point.weights] if saved else [])]
    return tag("tr", *[tag("td", esc(cell)) for cell in cells], cls="strong" if point.on_front else "")


def _picture(run: Run, names: list[str], points: list[Point], x: int, y: int) -> Chart:
    front = sorted((point for point in points if point.on_front), key=lambda point: point.values[x])
    rest = [point for point in points if not point.on_front]
    knee = [point for point in front if point.step == run.pareto.get("knee")]
    data = [
        _dots(rest, x, y, "evaluated", "$muted", size=7),
        {**_dots(front, x, y, "front", "$task-0", size=9), "mode": "lines+markers+text"},
        _dots(knee, x, y, "knee", "$good", size=14, symbol="star"),
    ]
    # With two objectives the front is a stair, below and left of which all is beaten: from a point first down, then
    # right.  With more, its shadow on two of them is no line.
    data[1]["line"] = {"color": "$task-0", "width": 2, "shape": "vh" if len(names) == 2 else "linear"}
    data[1]["mode"] = "lines+markers+text" if len(names) == 2 else "markers+text"
    data[1]["text"] = _labels(front, points, x, y)
    layout = {
        "xaxis": {"title": {"text": plain(names[x])}, "tickmode": "auto", "nticks": 6},
        "yaxis": {"title": {"text": plain(names[y])}},
        "hovermode": "closest",
    }
    legend = [Key("front", "$task-0"), Key("knee", "$good"), Key("evaluated", "$muted")]
    hint = "Each point is an evaluation, with its step and one standard error to either side; up and right is better."
    title = f"{names[y]} against {names[x]}"
    return Chart(f"front-{x}-{y}", title, hint, [trace for trace in data if trace["x"]], layout, legend, height=380)


def _labels(front: list[Point], points: list[Point], x: int, y: int) -> list[str]:
    """Return the step of each point; of those too close to tell apart the first bears the steps of all."""
    spans = [max(p.values[axis] for p in points) - min(p.values[axis] for p in points) for axis in (x, y)]
    steps: list[list[int]] = []
    for index, point in enumerate(front):
        near = [
            earlier
            for earlier in range(index)
            if steps[earlier]
            and all(
                abs(point.values[axis] - front[earlier].values[axis]) <= _TOO_CLOSE * span
                for axis, span in zip((x, y), spans, strict=True)
            )
        ]
        steps.append([] if near else [point.step])
        if near:
            steps[near[0]].append(point.step)
    return [", ".join(map(str, sorted(own))) for own in steps]


def _dots(
    points: list[Point], x: int, y: int, label: str, colour: str, *, size: int, symbol: str = "circle"
) -> dict[str, Any]:
    bars = {"type": "data", "color": f"{colour}/0.45", "thickness": 1, "width": 0}
    pairs = [(point.values[x], point.values[y]) for point in points]
    hover = "%{customdata}: %{x:.4g}, %{y:.4g}"
    return {
        **point_trace(pairs, label, colour, hover, size=size, symbol=symbol),
        "error_x": {**bars, "array": [point.errors[x] for point in points]},
        "error_y": {**bars, "array": [point.errors[y] for point in points]},
        "text": [str(point.step) for point in points],
        "textposition": "top right",
        "customdata": [plain(point.label) for point in points],
    }


def _volumes(points: list[Point]) -> list[Chart]:
    own = [point for point in points if point.hypervolume is not None]
    if len(own) < 2:
        return []
    curve = Series("hypervolume", [point.step for point in own], [point.hypervolume for point in own])
    hint = "How much the front of all checkpoints so far covers above the reference point; it never falls."
    return [
        Chart(
            "hypervolume", "Hypervolume", hint, [line_trace(curve, "hypervolume", "$task-0", markers=True)], height=380
        )
    ]


def _read(run: Run) -> tuple[list[str], list[Point]]:
    names = [str(name)[:80] for name in _list(run.pareto.get("objectives"))]
    points = [point for row in _list(run.pareto.get("points")) if (point := _point(row, len(names))) is not None]
    return names, points


def _point(row: object, size: int) -> Point | None:
    if not isinstance(row, Mapping):
        return None
    values = [number(value) for value in _list(row.get("values"))]
    errors = [number(value) or 0.0 for value in _list(row.get("errors"))]
    finite = tuple(value for value in values if value is not None)
    if not (len(finite) == len(values) == len(errors) == size):
        return None
    return Point(
        step_of(row),
        str(row.get("stage"))[:20],
        finite,
        tuple(errors),
        row.get("front") is True,
        number(row.get("chance")),
        number(row.get("hypervolume")),
        str(row.get("weights") or "")[:200],
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
