"""The charts of a run.  Each function returns a chart, or ``None`` where the run has no such numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from levelhead import metrics as metric
from levelhead.metrics.base import Family
from levelhead.metrics.held_out import EVAL_STAGE, NUMBER, SCORE, SE
from levelhead.report.charts import (
    Chart,
    Key,
    area_traces,
    bar_traces,
    broken_steps,
    categories,
    curve_traces,
    line_trace,
    plain,
    point_trace,
    task_colour,
)
from levelhead.report.reading import EVAL_STAGES, Row, Run, step_of
from levelhead.report.series import Series, names_under, number, on_steps, series, smooth, thin

SHARE = {"tickformat": ".1~%", "rangemode": "tozero", "minallowed": 0, "maxallowed": 1}
"""Axis of a share between 0 and 1."""
TIMES = (
    (metric.TIME_SAMPLE, "task-0"),
    (metric.TIME_SCORE, "task-3"),
    (metric.TIME_ENV, "task-4"),
    (metric.TIME_TRAIN, "task-1"),
    (metric.TIME_EVAL, "task-2"),
)
"""Metrics of what a step's time goes into, and their colours."""


def held_out(run: Run) -> Chart | None:
    """Held-out score of every task over the steps of the last stage that trained."""
    stage = "grpo" if run.lines("grpo") else "sft"
    points = evaluations(run, stage)
    data: list[dict[str, Any]] = []
    legend = []
    for index, task in enumerate(run.tasks):
        colour = task_colour(index)
        curve = series(points, NUMBER.of(task, SCORE))
        if not curve:
            continue
        data.append(line_trace(curve, task, colour, markers=True))
        legend.append(Key(task, colour))
        errors = [_standard_error(run, task, point) for point in points if point["step"] in curve.steps]
        if any(errors):
            bars = [None if error is None else 2 * error for error in errors]
            data[-1]["error_y"] = {"type": "data", "array": bars, "color": f"{colour}/0.6", "thickness": 2, "width": 5}
    if not data:
        return None
    note = " Bars: two standard errors to either side." if any("error_y" in trace for trace in data) else ""
    return Chart(
        "held-out",
        "Held-out score",
        f"Items never trained on, over {stage.upper()} steps.{note}",
        data,
        legend=legend,
        wide=True,
        height=280,
    )


def reward_by_task(run: Run) -> Chart | None:
    """Mean reward of every task's rollouts."""
    rows = run.lines("grpo")
    curves = [(series(rows, metric.REWARD_BY_TASK.of(task)), task, task_colour(i)) for i, task in enumerate(run.tasks)]
    curves = [entry for entry in curves if entry[0]]
    total = series(rows, metric.REWARD)
    if len(curves) != 1 and total:
        curves.append((total, "all tasks" if curves else "reward", "$muted"))
    hint = "Mean reward of the batch. Faint: every step; bold: moving mean."
    return _curves("reward", "Reward while training", hint, curves)


def reward_parts(run: Run) -> list[Chart]:
    """Mean of every named part of the reward, one chart a task where the parts are kept by task."""
    rows = run.lines("grpo")
    names = names_under(rows, metric.PART_MEAN.prefix, metric.PART_MEAN.suffix)
    charts = []
    for task in [*run.tasks, ""]:
        prefix = f"{metric.PART_MEAN.prefix}{task}/" if task else metric.PART_MEAN.prefix
        own = [name for name in names if name.startswith(prefix)]
        names = [name for name in names if name not in own]
        curves = [
            (
                series(rows, name),
                name.removeprefix(prefix).removesuffix(metric.PART_MEAN.suffix),
                task_colour(i + len(run.tasks)),
            )
            for i, name in enumerate(own)
        ]
        title = f"{task}: parts of the reward" if task else "Parts of the reward"
        chart = _curves(f"parts-{task}" if task else "parts", title, "Each named reward on its own.", curves)
        charts += [chart] if chart else []
    return charts


def sft_loss(run: Run) -> Chart | None:
    """Loss of the supervised stage."""
    curves = [(series(run.lines("sft"), metric.LOSS), "loss", "$sft")]
    return _curves("sft-loss", "Supervised loss", "Cross-entropy of the demonstrations, in nats a token.", curves)


def entropy(run: Run) -> Chart | None:
    """Token entropy of the policy, by task."""
    hint = "Nats a token. A slide to zero is a policy that stops exploring; a climb is one that falls apart."
    return by_task(run, metric.ENTROPY_BY_TASK, "Entropy", hint)


def kl(run: Run) -> Chart | None:
    """Divergence from the reference, by task."""
    return by_task(run, metric.KL_BY_TASK, "KL to the reference", "How far the policy has moved, in nats a token.")


def dead_groups(run: Run) -> Chart | None:
    """Groups without contrast, by side."""
    rows = run.lines("grpo")
    failed = series(rows, metric.ALL_FAILED) or series(rows, "dead_groups/failed")
    solved = series(rows, metric.ALL_SOLVED) or series(rows, "dead_groups/solved")
    hint = "Groups whose rollouts all score alike teach nothing. Below: too hard; above: too easy. Moving mean."
    if failed or solved:
        layers = [(failed, "all failed", "$bad"), (solved, "all solved", "$good")]
        zero_std = on_steps(series(rows, metric.ZERO_STD), sorted({*failed.steps, *solved.steps}))
        sides = [on_steps(side, zero_std.steps).finite for side in (failed, solved)]
        rest = [all_ - a - b for all_, a, b in zip(zero_std.finite, *sides, strict=True)]
        if max(rest, default=0.0) > 1e-3:
            other = Series("otherwise alike", zero_std.steps, [max(0.0, value) for value in rest])
            layers.insert(1, (other, "otherwise alike", "$muted"))
        top = max(a + b for a, b in zip(*sides, strict=True))
    else:
        alike = series(rows, metric.ZERO_STD)
        if not alike:
            return None
        layers, top = [(alike, "all alike", "$muted")], max(alike.finite)
    axis = {**SHARE, "range": [0, 1]} if top <= 1.0 else {"rangemode": "tozero"}
    legend = [Key(label, colour) for _, label, colour in layers]
    smoothed = [(smooth(curve), label, colour) for curve, label, colour in layers]
    return Chart("dead-groups", "Dead groups", hint, area_traces(smoothed), {"yaxis": axis}, legend)


def lengths(run: Run) -> Chart | None:
    """Chart of the completions' lengths."""
    rows = run.lines("grpo")
    curves = [
        (series(rows, metric.MEAN_LENGTH), "mean", "$accent"),
        (series(rows, metric.MIN_LENGTH), "min", "$muted"),
        (series(rows, metric.MAX_LENGTH), "max", "$muted"),
    ]
    return _curves("lengths", "Completion length", "Tokens, the stop token included.", curves, zero=True)


def truncation(run: Run) -> Chart | None:
    """Completions that ran out of budget."""
    curves = [(series(run.lines("grpo"), metric.CLIPPED_RATIO), "ran out of budget", "$warn")]
    return _curves("truncation", "Truncation", "Share of completions cut off by the token budget.", curves, axis=SHARE)


def validity(run: Run) -> Chart | None:
    """Completions that parsed, by task."""
    hint = "Share of completions that the task could read."
    axis = {**SHARE, "tickformat": ".0%", "rangemode": "nonnegative"}
    return by_task(run, metric.VALIDITY_BY_TASK, "Valid answers", hint, axis=axis)


def clipping(run: Run) -> Chart | None:
    """Tokens whose ratio was clipped."""
    rows = run.lines("grpo")
    curves = [
        (series(rows, metric.CLIP_REGION), "either side", "$muted"),
        (series(rows, metric.CLIP_LOW), "below", "$task-0"),
        (series(rows, metric.CLIP_HIGH), "above", "$task-1"),
    ]
    hint = "Share of tokens whose probability ratio left the trust region. Zero with one update a batch."
    return _curves("clipping", "Clipped tokens", hint, curves, axis=SHARE)


def gradient(run: Run) -> Chart | None:
    """Norm of the gradient before clipping."""
    rows = run.lines("grpo") or run.lines("sft")
    curve = series(rows, metric.GRAD_NORM)
    bound = number(run.setting("grpo" if run.lines("grpo") else "sft", "optimizer", "max_grad_norm"))
    log = bool(curve.finite) and min(curve.finite) > 0 and max(curve.finite) > 30 * min(curve.finite)
    axis = {"type": "log", "dtick": 1, "tickformat": "~g"} if log else {"rangemode": "tozero"}
    chart = _curves("gradient", "Gradient norm", "Before clipping.", [(curve, "norm", "$accent")], axis=axis)
    if chart and bound is not None and max(curve.finite) > bound / 5:
        ends = Series("bound", [curve.steps[0], curve.steps[-1]], [bound, bound])
        chart.data.append(line_trace(ends, "scaled down above", "$warn", width=1.3, dash="dash"))
        chart.legend.extend([Key("norm", "$accent"), Key("scaled down above", "$warn", dash=True)])
    return chart


def learning_rate(run: Run) -> Chart | None:
    """The schedule as it was."""
    rows = run.lines("grpo") or run.lines("sft")
    curve = thin(series(rows, metric.LEARNING_RATE))
    if not curve:
        return None
    layout = {"yaxis": {"rangemode": "tozero", "exponentformat": "power", "tickformat": "~g"}}
    data = [line_trace(curve, "learning rate", "$accent")]
    return Chart("learning-rate", "Learning rate", "The schedule as it was.", data, layout)


def cosines(run: Run) -> Chart | None:
    """Cosine between the gradients of the objectives."""
    rows = run.lines("grpo")
    names = names_under(rows, metric.MERGE_COSINE.prefix)
    curves = [
        (series(rows, name), name.removeprefix(metric.MERGE_COSINE.prefix).replace("/", " and "), task_colour(i))
        for i, name in enumerate(names)
    ]
    chart = _curves(
        "cosines",
        "Do the objectives agree?",
        "Cosine between their gradients: 1 pull together, 0 ignore each other, -1 fight.",
        curves,
        axis={"range": [-1.05, 1.05], "dtick": 0.5},
    )
    if chart:
        chart.legend[:] = [Key(label, colour) for _, label, colour in curves]
    return chart


def timing(run: Run) -> Chart | None:
    """Seconds of a step by what they went into."""
    rows = run.lines("grpo") or run.lines("sft")
    layers = [(series(rows, name), name.removeprefix(metric.TIME), f"${colour}") for name, colour in TIMES]
    layers = [entry for entry in layers if entry[0]]
    if not layers:
        curve = series(rows, metric.STEP_TIME)
        return _curves("timing", "Seconds a step", "Wall clock.", [(curve, "step", "$accent")], zero=True)
    rest = _unaccounted(series(rows, metric.STEP_TIME), [curve for curve, _, _ in layers])
    if rest:
        layers.append((rest, "other", "$muted"))
    legend = [Key(label, colour) for _, label, colour in layers]
    layout = {"barmode": "stack", "bargap": 0, "yaxis": {"ticksuffix": " s", "rangemode": "tozero"}}
    hint = "Wall clock of every step, by what it went into."
    return Chart("timing", "Seconds a step", hint, bar_traces(layers), layout, legend, wide=True)


def top_share(run: Run) -> Chart | None:
    """One answer to everything, beside how alike perfect answers to the same prompts are."""
    hint = "Share of prompts whose most common answer is the batch's. Near 1, one answer is given to everything."
    chart = by_task(run, metric.TOP_SHARE, "One answer to all prompts", hint, axis={**SHARE, "tickformat": ".0%"})
    rows = run.lines("grpo")
    for index, task in enumerate(run.tasks if chart else ()):
        label, colour = f"{task}, perfect answers", task_colour(index)
        curve = thin(smooth(series(rows, metric.PERFECT_SHARE.of(task))))
        if chart and curve:
            chart.data.append(line_trace(curve, label, colour, width=1.3, dash="dash"))
            chart.legend.append(Key(label, colour, dash=True))
    return chart


def information(run: Run) -> Chart | None:
    """What answers hold of their prompts, by task."""
    hint = "Information that answers hold of their prompts, in nats. At 0 they do not depend on what was asked."
    return by_task(run, metric.INFORMATION, "What answers tell of prompts", hint)


def distinct(run: Run) -> Chart | None:
    """Different answers for each prompt, by task."""
    hint = "Different answers of the batch for each of its prompts, told apart as the task tells them."
    return by_task(run, metric.DISTINCT, "Different answers", hint)


def event_strip(run: Run) -> Chart | None:
    """When which finding was seen."""
    codes = list(dict.fromkeys(str(event.get("code")) for event in run.events))
    if len(run.events) < 3:
        return None
    data = []
    colours = {"critical": "$bad", "warning": "$warn", "info": "$accent"}
    for severity, colour in colours.items():
        if events := [event for event in run.events if event.get("severity") == severity]:
            points = [(step_of(event), plain(str(event.get("code")))) for event in events]
            data.append(point_trace(points, severity, colour, f"{severity} at step %{{x}}", symbol="diamond"))
    legend = [Key(severity, colour) for severity, colour in colours.items() if any(t["name"] == severity for t in data)]
    layout = {
        "yaxis": categories(codes),
        "xaxis": {"range": _whole_run(run)},
        "hovermode": "closest",
    }
    height = 60 + 30 * len(codes)
    return Chart("event-strip", "When it happened", "", data, layout, legend, wide=True, height=height)


PANELS: dict[str, tuple[Callable[[Run], Chart | list[Chart] | None], ...]] = {
    "Learning": (held_out, reward_by_task, validity, reward_parts, sft_loss),
    "Answers and prompts": (top_share, information, distinct),
    "Policy": (entropy, kl, dead_groups, cosines, lengths, truncation),
    "Updates": (clipping, gradient, learning_rate),
    "Time": (timing,),
}
"""Charts by section, in order."""


def _whole_run(run: Run) -> list[float]:
    steps = [step_of(row) for row in [*run.metrics, *run.events]]
    margin = max(1.0, 0.02 * max(steps))
    return [-margin, max(steps) + margin]


def _curves(
    name: str,
    title: str,
    hint: str,
    curves: Sequence[tuple[Series, str, str]],
    *,
    zero: bool = False,
    axis: dict[str, Any] | None = None,
) -> Chart | None:
    shown = [entry for entry in curves if entry[0]]
    if not shown:
        return None
    data = [trace for curve, label, colour in shown for trace in curve_traces(curve, label, colour)]
    legend = [Key(label, colour) for _, label, colour in shown] if len(shown) > 1 else []
    layout = {"yaxis": axis or ({"rangemode": "tozero"} if zero else {})}
    warning = broken_steps([curve for curve, _, _ in curves])
    return Chart(name, title, hint, data, layout, legend, warning=warning)


def by_task(run: Run, family: Family, title: str, hint: str, *, axis: dict[str, Any] | None = None) -> Chart | None:
    """Draw ``name/<task>`` for every task, or ``name`` where it is not kept by task."""
    rows, name = run.lines("grpo"), family.prefix.removesuffix("/")
    curves = [(series(rows, family.of(task)), task, task_colour(i)) for i, task in enumerate(run.tasks)]
    curves = [entry for entry in curves if entry[0]] or [(series(rows, name), name, "$accent")]
    return _curves(name.replace("/", "-"), title, hint, curves, zero=axis is None, axis=axis)


def evaluations(run: Run, stage: str) -> list[Row]:
    """Evaluation lines on the steps of one training stage: those within it, and the one right before it at step 0."""
    before = EVAL_STAGES[EVAL_STAGES.index(stage) - 1]
    current = ""
    points: dict[int, Row] = {}
    for row in run.metrics:
        if row.get("stage") != "eval":
            current = str(row.get("stage"))
            continue
        mark = row.get(EVAL_STAGE)
        if mark == stage or (mark is None and current == stage):
            points[step_of(row)] = row
        elif mark == before or (mark == "start" and not points):
            points[0] = row
    return [{**row, "step": step} for step, row in sorted(points.items())]


def _standard_error(run: Run, task: str, point: Row) -> float | None:
    """Standard error of a held-out score: on the line itself, else from the summary of that stage."""
    own = number(point.get(NUMBER.of(task, SE)))
    stage = run.summary_tasks.get(task, {}).get(str(point.get(EVAL_STAGE)))
    return own if own is not None else number(stage.get("se")) if isinstance(stage, dict) else None


def _unaccounted(whole: Series, parts: Sequence[Series]) -> Series | None:
    if not whole:
        return None
    sums = [0.0] * len(whole.steps)
    for part in parts:
        for index, value in enumerate(on_steps(part, whole.steps).finite):
            sums[index] += value
    rest = [None if a is None else max(0.0, a - b) for a, b in zip(whole.values, sums, strict=True)]
    numbers = [value for value in rest if value is not None]
    return Series("other", whole.steps, rest) if sum(numbers) > 0.01 * sum(whole.finite) else None
