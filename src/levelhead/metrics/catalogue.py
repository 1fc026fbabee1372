"""All declarations together: what a key of a line is, and the page of the documentation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

from levelhead import metrics
from levelhead.metrics import held_out
from levelhead.metrics.base import Bounds, Family, Metric, Section

SECTIONS = (*metrics.SECTIONS, *held_out.SECTIONS)
"""In the order of the documentation."""
METRICS = tuple(metric for section in SECTIONS for metric in section.metrics)
"""Every metric and family."""

_SINGLE = {metric.name: metric for metric in METRICS if not isinstance(metric, Family)}
_STAGES = {"sft": "SFT", "grpo": "GRPO", "eval": "evaluations"}
_HEAD = """\
# Metrics

Every number that a run writes to [`metrics.jsonl`](run-folder.md#metricsjsonl). This page is made from the code's
declarations by `python -m levelhead.metrics > docs/metrics.md`.

Names are TRL's where TRL has the metric. `<task>` and the like stand for a name. The last column says which lines hold
a metric, and under which condition; where it does not hold, the metric is absent, never 0. With several updates a
rollout batch, a line holds the mean over the updates; of a `/max` or `/min` the largest or smallest. A number that is
not finite is written as the text `"nan"`, `"inf"` or `"-inf"`; ranges are those of finite numbers.
"""


@cache
def find(name: str) -> Metric | None:
    """Return what a key of ``metrics.jsonl`` is: the metric, or the first family that it is a member of.

    ``None`` where nobody has declared it: what a reward function logs under a name of its own.
    """
    return _SINGLE.get(name) or next((metric for metric in METRICS if metric.matches(name)), None)


def page() -> str:
    """Return the text of docs/metrics.md."""
    return "\n".join([_HEAD, *(line for section in SECTIONS for line in _section(section))])


def _section(section: Section) -> Iterator[str]:
    yield from (f"## {section.title}", "")
    if section.text:
        yield from (section.text, "")
    yield from ("| metric | meaning | unit | range | written |", "|---|---|---|---|---|")
    for one in section.metrics:
        where = ", ".join(_STAGES[stage] for stage in one.stages)
        when = f"{where}: {one.only}" if one.only else where
        yield f"| `{one.shown}` | {one.meaning} | {one.unit} | {_range(one.bounds)} | {when} |"
    yield ""


def _range(bounds: Bounds) -> str:
    low, high = bounds
    if math.isinf(low):
        return ""
    return f"from {low:g}" if math.isinf(high) else f"{low:g} to {high:g}"
