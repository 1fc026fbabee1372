"""A small static chart: panels of dots with whiskers, as SVG that a page or a repository shows without a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#2e6fd0", "#d4622a", "#16876a", "#8a52bf", "#9a7a0a")
WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 34, 62


@dataclass(frozen=True)
class Panel:
    """One picture.

    ``points``: series name to a (mean, standard error) or ``None`` for each of ``categories``.
    """

    title: str
    categories: Sequence[str]
    points: Mapping[str, Sequence[tuple[float, float] | None]]
    low: float
    high: float
    percent: bool = False


def figure(panels: Sequence[Panel], columns: int, caption: str) -> str:
    """Panels in a grid below a legend, as one SVG document."""
    rows = -(-len(panels) // columns)
    width, height = columns * WIDTH, rows * HEIGHT + 30
    names = list(dict.fromkeys(name for panel in panels for name in panel.points))
    head = f'viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{escape(caption)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {head} font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for place, name in enumerate(names):
        x = LEFT + place * 120
        parts.append(f'<circle cx="{x}" cy="15" r="5" fill="{COLOURS[place % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 10}" y="19" fill="#1d2126">{escape(name)}</text>')
    for place, panel in enumerate(panels):
        x, y = place % columns * WIDTH, 30 + place // columns * HEIGHT
        parts.append(f'<g transform="translate({x},{y})">{_panel(panel, names)}</g>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, names: Sequence[str]) -> str:
    def at(value: float) -> float:
        share = (min(max(value, panel.low), panel.high) - panel.low) / (panel.high - panel.low)
        return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text x="{LEFT}" y="20" font-weight="600" fill="#1d2126">{escape(panel.title)}</text>']
    for tick in range(5):
        value = panel.low + tick * (panel.high - panel.low) / 4
        label = f"{value:.0%}" if panel.percent else f"{value:.2f}"
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at(value):.1f}" y2="{at(value):.1f}" stroke="#e4e2dc"/>'
            f'<text x="{LEFT - 6}" y="{at(value) + 4:.1f}" text-anchor="end" fill="#646b75">{label}</text>'
        )
    slot = (WIDTH - LEFT - RIGHT) / len(panel.categories)
    for column, category in enumerate(panel.categories):
        centre = LEFT + (column + 0.5) * slot
        for row, words in enumerate(category.split(", ")):
            y = HEIGHT - BOTTOM + 18 + 14 * row
            parts.append(
                f'<text x="{centre:.1f}" y="{y}" text-anchor="middle" fill="#646b75" font-size="11">'
                f"{escape(words)}</text>"
            )
        for place, name in enumerate(names):
            point = panel.points.get(name, [None] * len(panel.categories))[column]
            if point is not None:
                x = centre + (place - (len(names) - 1) / 2) * slot / (len(names) + 1)
                parts.append(_dot(x, point, at, COLOURS[place % len(COLOURS)]))
    return "".join(parts)


def _dot(x: float, point: tuple[float, float], at: Callable[[float], float], colour: str) -> str:
    mean, error = point
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{at(mean - error):.1f}" y2="{at(mean + error):.1f}" '
        f'stroke="{colour}" stroke-width="2"/><circle cx="{x:.1f}" cy="{at(mean):.1f}" r="4" fill="{colour}"/>'
    )
