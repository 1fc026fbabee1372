"""What is said in words and tables: events, checks, judges, further metrics, the recipe, the environment."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from levelhead import metrics as metric
from levelhead.metrics import judging
from levelhead.report.markup import esc, figure, fold, pairs, pill, table, tag
from levelhead.report.reading import Row, Run, step_of
from levelhead.report.series import Series, names_under, series, thin
from levelhead.terminal import counted

_HEADS = (
    "Judge", "Verdicts", "Without a grade", "Calls", "From the cache", "Cost", "Median latency", "95th percentile",
    "Mean grade", "Turned by order", "Drift", "Steps left alone",
)  # fmt: skip
_HINT = (
    "Over all steps of training; the latencies are the medians of the steps' own. Where answers are compared in pairs, "
    "some are turned by their order: the judge decided otherwise when they changed places. Drift is the last change of "
    "the mean grade on the anchors; a judge is left alone for a while after it failed."
)


def judges(run: Run) -> str:
    """Return a table of what each judge was asked, gave and cost, and how it stood at the end; empty without judges."""
    numbers = _by_judge(run)
    if not numbers:
        return ""
    rows = [_row(judge, of) for judge, of in sorted(numbers.items())]
    return tag("p", esc(_HINT), cls="said") + table(_HEADS, rows)


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


_TONES = {"critical": "bad", "warning": "warn", "info": "info", "fail": "bad", "warn": "warn", "pass": "good"}
_RANK = {"critical": 0, "warning": 1, "info": 2}
_ORDER = {"fail": 0, "warn": 1, "pass": 2}
_DRAWN = {
    "step",
    metric.REWARD,
    metric.ZERO_STD,
    metric.GRAD_NORM,
    metric.LEARNING_RATE,
    metric.STEP_TIME,
    metric.ENTROPY,
    metric.KL,
    metric.VALIDITY,
}
_DRAWN_UNDER = (
    metric.REWARD_BY_TASK.prefix, metric.PART_MEAN.prefix, metric.VALIDITY_BY_TASK.prefix,
    metric.ENTROPY_BY_TASK.prefix, metric.KL_BY_TASK.prefix, "dead_groups/", metric.MERGE_COSINE.prefix, metric.TIME,
    metric.MEAN_LENGTH, metric.MIN_LENGTH, metric.MAX_LENGTH, metric.CLIPPED_RATIO,
    metric.CLIP_LOW, metric.CLIP_HIGH, metric.CLIP_REGION,
    metric.CURRICULUM_SUCCESS.prefix, metric.CURRICULUM_SHARE.prefix,
    metric.TOP_SHARE.prefix, metric.DISTINCT.prefix, metric.INFORMATION.prefix, metric.PERFECT_SHARE.prefix,
)  # fmt: skip
"""Metrics that have a chart of their own."""

_MANY = 8
"""Metrics under one name beyond which they are folded away."""


def events(run: Run) -> str:
    """Every finding once, worst first, with how often, when, and the numbers of the last time."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for event in run.events:
        action = str(event.get("action") or "")
        groups.setdefault((str(event.get("severity")), str(event.get("code")), action), []).append(event)
    ranked = sorted(groups.items(), key=lambda item: (_RANK.get(item[0][0], 3), step_of(item[1][0])))
    return tag("div", *[_event(*names, seen) for names, seen in ranked], cls="rows") if ranked else ""


def checks(run: Run) -> str:
    """The preflight checks, failures first; what passed is folded away."""
    ranked = sorted(run.checks, key=lambda check: _ORDER.get(str(check.get("status")), 3))
    loud = [_check(check) for check in ranked if check.get("status") != "pass"]
    passed = [_check(check) for check in ranked if check.get("status") == "pass"]
    shown = tag("div", *loud, cls="rows") if loud else ""
    if passed:
        shown += fold(f"{counted(len(passed), 'check')} passed", tag("div", *passed, cls="rows"))
    return shown


def recipe(run: Run) -> str:
    """The recipe as it was resolved."""
    return fold("recipe.yaml", tag("pre", esc(run.recipe_text), cls="code")) if run.recipe_text.strip() else ""


def environment(run: Run) -> str:
    """Return versions, hardware and revision as pairs."""
    return pairs(run.environment) if run.environment else ""


def further_metrics(run: Run) -> str:
    """Whatever else was measured while training, as small curves."""
    cells: dict[str, list[str]] = {}
    for stage in ("sft", "grpo"):
        rows = run.lines(stage)
        trained_last = stage == "grpo" or not run.lines("grpo")
        for name in names_under(rows, ""):
            drawn = (
                name in _DRAWN or name.startswith(_DRAWN_UNDER) if trained_last else name in ("step", metric.STEP_TIME)
            )
            if drawn or (stage == "sft" and name == metric.LOSS):
                continue
            curve = series(rows, name)
            if len(curve.finite) > 1:
                cell = _cell(name if stage == "grpo" else f"{name} (SFT)", curve)
                cells.setdefault(name.split("/")[0] if "/" in name else "", []).append(cell)
    few = [cell for family in cells.values() if len(family) <= _MANY for cell in family]
    many = [
        fold(f"{len(family)} under {esc(name)}/" if name else f"{len(family)} more", tag("div", *family, cls="sparks"))
        for name, family in cells.items()
        if len(family) > _MANY
    ]
    return (tag("div", *few, cls="sparks") if few else "") + "".join(many)


def missing(run: Run) -> str:
    """What the folder did not hold, or held broken."""
    return tag("p", esc("; ".join(run.notes)) + ".", cls="muted") if run.notes else ""


def _event(severity: str, code: str, action: str, seen: list[Row]) -> str:
    last = seen[-1]
    steps = [step_of(event) for event in seen]
    when = f"step {steps[0]}" if len(set(steps)) == 1 else f"steps {min(steps)} to {max(steps)}"
    head = pill(severity, _TONES.get(severity, "")) + tag("b", esc(code), cls="code-name")
    head += tag("span", esc(when + (f", {len(seen)} times" if len(seen) > 1 else "")), cls="muted")
    head += pill(f"action: {action}", "info") if action else ""
    return tag(
        "article", tag("div", head, cls="row-head"), tag("p", esc(last.get("message", ""))), _evidence(last), cls="row"
    )


def _check(check: Row) -> str:
    status = str(check.get("status"))
    head = pill(status, _TONES.get(status, "")) + tag("b", esc(check.get("name", "")), cls="code-name")
    body = tag("p", esc(check.get("message", "")))
    if check.get("fix") and status != "pass":
        body += tag("p", tag("b", "Way out: "), esc(check["fix"]))
    return tag("article", tag("div", head, cls="row-head"), body, _evidence(check), cls="row")


def _evidence(row: Row) -> str:
    evidence = row.get("evidence")
    if isinstance(evidence, dict) and evidence:
        return fold("the numbers", pairs(evidence))
    return fold("the evidence", tag("pre", esc(evidence))) if evidence else ""


def _cell(name: str, curve: Series) -> str:
    ends = f"{figure(curve.finite[0], 3)} \u2192 {figure(curve.finite[-1], 3)}"
    return tag("figure", tag("figcaption", esc(name)), _spark(thin(curve)), tag("span", esc(ends), cls="muted"))


def _spark(curve: Series) -> str:
    """Draw a curve as a small inline picture, 160 by 36 units, gaps left open."""
    low, high = min(curve.finite), max(curve.finite)
    first, last = curve.steps[0], curve.steps[-1]
    pieces: list[list[str]] = [[]]
    for step, value in zip(curve.steps, curve.values, strict=True):
        if value is None:
            pieces.append([])
            continue
        x = 160 * (step - first) / max(1, last - first)
        y = 33 - 30 * ((value - low) / (high - low) if high > low else 0.5)
        pieces[-1].append(f"{x:.1f},{y:.1f}")
    lines = [tag("polyline", points=" ".join(points)) for points in pieces if points]
    return tag("svg", *lines, viewBox="0 0 160 36", preserveAspectRatio="none", aria_hidden="true")
