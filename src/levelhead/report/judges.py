"""A table of the judges of a run: what each was asked, gave and cost, and how it stood at the end."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from levelhead.metrics import judging
from levelhead.report.markup import esc, tag
from levelhead.report.reading import Run

_HEADS = (
    "Judge", "Verdicts", "Without a grade", "Calls", "From the cache", "Cost", "Median latency", "95th percentile",
    "Mean grade", "Turned by order", "Drift", "Steps left alone",
)  # fmt: skip
_HINT = (
    "Over all steps of training; the latencies are the medians of the steps' own. Where answers are compared in pairs, "
    "some are turned by their order: the judge decided otherwise when they changed places. Drift is the last change of "
    "the mean grade on the anchors; a judge is left alone for a while after it failed."
)


def table(run: Run) -> str:
    """Return the table as markup; empty for a run without a list of judges."""
    numbers = _by_judge(run)
    if not numbers:
        return ""
    head = tag("tr", *[tag("th", esc(cell)) for cell in _HEADS])
    rows = [tag("tr", *[tag("td", esc(cell)) for cell in _row(judge, of)]) for judge, of in sorted(numbers.items())]
    return tag("p", esc(_HINT), cls="said") + tag("div", tag("table", head, *rows), cls="scroll")


def _by_judge(run: Run) -> dict[str, dict[str, list[float]]]:
    """The series of each judge's numbers, over the steps that have them."""
    numbers: dict[str, dict[str, list[float]]] = {}
    for row in run.metrics:
        for key, value in row.items():
            parts = key.split("/")
            named = len(parts) == 3 and key.startswith(judging.OF.prefix)
            if named and isinstance(value, int | float) and not isinstance(value, bool):
                numbers.setdefault(parts[1], {}).setdefault(parts[2], []).append(float(value))
    return numbers


def _row(judge: str, of: Mapping[str, Sequence[float]]) -> list[str]:
    def cell(name: str, total: Callable[[Sequence[float]], float], form: str) -> str:
        return form.format(total(of[name])) if of.get(name) else "-"

    return [
        judge,
        cell("verdicts", sum, "{:.0f}"),
        cell("failures", sum, "{:.0f}"),
        cell("calls", sum, "{:.0f}"),
        cell("cached", sum, "{:.0f}"),
        cell("cost", sum, "{:.4g}"),
        cell("latency_median", statistics.median, "{:.2f} s"),
        cell("latency_p95", statistics.median, "{:.2f} s"),
        cell("grade", statistics.fmean, "{:.3f}"),
        cell("order_disagreement", statistics.fmean, "{:.0%}"),
        cell("drift", lambda values: values[-1], "{:+.3f}"),
        cell("down", sum, "{:.0f}"),
    ]
