"""The top of the page: what came of the run, in a sentence and one card a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from levelhead import metrics as metric
from levelhead.diagnosis.verdict import Outcome, compare
from levelhead.report.charts import Chart, Key, plain, point_trace, task_colour
from levelhead.report.markup import duration, esc, pill, signed, tag
from levelhead.report.reading import EVAL_STAGES, Row, Run, step_of
from levelhead.report.scores import Stage, measured, stages_of, verdict_of
from levelhead.report.series import number, series
from levelhead.terminal import counted

STAGE_NAMES = {"start": "before training", "sft": "after SFT", "grpo": "after GRPO"}
STAGE_COLOURS = {"start": "$start", "sft": "$sft", "grpo": "$grpo"}
TONES: dict[Outcome, str] = {"improved": "good", "worse": "bad", "not improved": "warn", "undecided": "info"}
"""Tone of the pill with a verdict's outcome."""
NOT_MEASURED = "Not measured against a constant answer."
"""What is said of a run whose summary holds no such baseline."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a run came to on one task, for a card and the headline.

    Attributes:
        word: A word or two.
        tone: Tone of the pill.
        text: A sentence or two.
    """

    word: str
    tone: str
    text: str


def judge(summary: Row, task: str) -> Judgement | None:
    """Return what is to be said of a task; ``None`` where there is no comparison to make.

    The run's own verdict counts, which holds the last stage against the one before, against the best constant answer
    and stratum by stratum.  An older run has none, and is never called improved.
    """
    tasks = summary.get("tasks")
    stages = stages_of(tasks.get(task)) if isinstance(tasks, dict) else []
    if (verdict := verdict_of(summary, task)) is not None:
        return Judgement(verdict.outcome, TONES[verdict.outcome], verdict.text)
    if len(stages) < 2:
        return None
    change = stages[-1].main.beside(stages[-2].main)
    words = {"below": ("score fell", "bad"), "above": ("score rose", "info")}
    moved = words.get(compare(change.value, change.se, stages[-1].n), ("no clear change", "warn"))
    measured = any(stage.constant is not None for stage in stages)
    return Judgement(*moved, "The run did not come to its end." if measured else NOT_MEASURED)


def headline(run: Run) -> str:
    """One sentence or two on what came of the run."""
    stop = next((event for event in reversed(run.events) if event.get("action") == "stop"), None)
    if stop is not None:
        return f"Stopped at step {step_of(stop)}: {esc(stop.get('message') or stop.get('code'))}"
    judgements = {task: judgement for task in run.summary_tasks if (judgement := judge(run.summary, task)) is not None}
    if not judgements:
        return "No held-out comparison is on record: the run has not been evaluated before and after a stage."
    better = [task for task, judgement in judgements.items() if judgement.word == "improved"]
    rest = [task for task in judgements if task not in better]
    if not rest:
        count = len(judgements)
        who = "The task" if count == 1 else "Both tasks" if count == 2 else f"All {count} tasks"
        return f"{who} improved: above the stage before, above the best constant answer, and no stratum fell."
    if all(verdict_of(run.summary, task) is None for task in judgements):
        return _by_score(judgements)
    words: dict[str, list[str]] = {}
    for task in rest:
        words.setdefault(judgements[task].word, []).append(task)
    parts = [f"{word} on {_names(tasks)}" for word, tasks in words.items()]
    outcome = "; ".join([f"improved on {_names(better)}", *parts] if better else parts)
    return f"{outcome[0].upper()}{outcome[1:]}."


def _by_score(judgements: dict[str, Judgement]) -> str:
    """The headline of a run without verdicts: where scores went, and that this alone shows little."""
    rose = [task for task, judgement in judgements.items() if judgement.word == "score rose"]
    fell = [task for task, judgement in judgements.items() if judgement.word == "score fell"]
    parts = [f"rose on {_names(rose)}"] if rose else []
    parts += [f"fell on {_names(fell)}"] if fell else []
    went = f"Held-out score {' and '.join(parts)}." if parts else "No change of the held-out score beyond chance."
    return f"{went} {next(iter(judgements.values())).text}"


def task_cards(run: Run) -> str:
    """One card a task: what it came to, its balanced score by stage beside the best constant answer."""
    order = run.tasks
    cards = [
        _card(run, task, stages, task_colour(order.index(task) if task in order else 0).removeprefix("$"))
        for task, entry in run.summary_tasks.items()
        if (stages := stages_of(entry))
    ]
    return tag("div", *cards, cls="cards") if cards else ""


def facts(run: Run) -> str:
    """A strip of facts: steps, rollouts, time, what the guard and the checks said."""
    grpo = run.recipe.get("grpo") if isinstance(run.recipe.get("grpo"), dict) else {}
    steps = {stage: len(run.lines(stage)) for stage in ("sft", "grpo")}
    entries = [(f"{stage.upper()} steps", str(n)) for stage, n in steps.items() if n]
    if steps["grpo"] and grpo and isinstance(grpo.get("batch_size"), int):
        entries.append(("rollouts", f"{steps['grpo'] * grpo['batch_size']:,}"))
    seconds = number(run.summary.get("seconds"))
    if seconds is None and run.metrics:
        seconds = sum(sum(series(run.lines(s), metric.STEP_TIME).finite) for s in steps)
    if seconds:
        entries.append(("time", duration(seconds)))
    counts = [sum(event.get("severity") == s for event in run.events) for s in ("critical", "warning")]
    entries.append(
        ("guard", f"{counts[0]} critical, {counted(counts[1], 'warning')}" if any(counts) else "nothing to report")
    )
    if run.checks:
        failed = sum(check.get("status") == "fail" for check in run.checks)
        entries.append(
            ("preflight", f"{failed} failed" if failed else f"{counted(len(run.checks), 'check')}, none failed")
        )
    shown = [f"<div><dt>{esc(name)}</dt><dd>{esc(value)}</dd></div>" for name, value in entries]
    return f'<dl class="facts">{"".join(shown)}</dl>'


def own_metrics(run: Run) -> list[Chart]:
    """The tasks' own metrics (accuracy by condition, bias scores, ...) by stage, one chart a task."""
    charts = []
    for task, stages in run.summary_tasks.items():
        by_stage: dict[str, Row] = {
            stage: stages[stage]["metrics"]
            for stage in EVAL_STAGES
            if isinstance(stages.get(stage), dict) and isinstance(stages[stage].get("metrics"), dict)
        }
        names = list(dict.fromkeys(n for values in by_stage.values() for n in values))
        names = [n for n in names if any(number(values.get(n)) is not None for values in by_stage.values())]
        if names:
            charts.append(_dumbbells(task, by_stage, names))
    return charts


def _dumbbells(task: str, by_stage: dict[str, Row], names: list[str]) -> Chart:
    spans = [[v for values in by_stage.values() if (v := number(values.get(name))) is not None] for name in names]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [x for span in spans for x in (min(span), max(span), None)],
            "y": [y for name in map(plain, names) for y in (name, name, None)],
            "line": {"color": "$grid", "width": 5},
            "hoverinfo": "skip",
        }
    ]
    for stage, values in by_stage.items():
        points = [(number(values.get(name)), plain(name)) for name in names]
        data.append(point_trace(points, STAGE_NAMES[stage], STAGE_COLOURS[stage], f"{STAGE_NAMES[stage]} %{{x:.3f}}"))
    return Chart(
        f"own-{task}",
        task,
        "On held-out items, before and after.",
        data,
        {
            "yaxis": {"type": "category", "categoryarray": [plain(name) for name in names[::-1]], "automargin": True},
            "xaxis": {"zeroline": True, "title": {"text": ""}},
            "hovermode": "closest",
        },
        [Key(STAGE_NAMES[stage], STAGE_COLOURS[stage]) for stage in by_stage],
        height=80 + 26 * len(names),
    )


def _card(run: Run, task: str, stages: list[Stage], colour: str) -> str:
    judged = judge(run.summary, task)
    last = stages[-1]
    parts = [tag("h3", tag("i", cls="dot", style=f"background:var(--{colour})"), esc(task))]
    what = "balanced score" if last.balanced else "score"
    if judged is not None:
        parts[0] = tag("div", parts[0], pill(judged.word, judged.tone), cls="card-head")
    now = tag("b", esc(signed(last.main.value)))
    parts.append(tag("p", now, f" {what} {STAGE_NAMES[last.name]}", cls="change"))
    if judged is not None and judged.text:
        parts.append(tag("p", esc(judged.text), cls="said"))
    parts.append(_ladder(stages))
    notes = [
        _moved([s.validity for s in stages], "valid", lambda v: f"{v:.0%}"),
        _moved([s.length for s in stages], "tokens", lambda v: f"{v:.0f}" if v >= 10 else f"{v:.1f}"),
        counted(last.n, "item") if last.n else "",
    ]
    parts.append(tag("p", " · ".join(note for note in notes if note), cls="muted"))
    return tag("article", *parts, cls="card", style=f"--own:var(--{colour})")


def _ladder(stages: list[Stage]) -> str:
    """Draw every stage's score, and the best constant answer's, as a point with two standard errors to either side."""
    rungs = [(STAGE_NAMES[s.name], s.main, STAGE_COLOURS[s.name].removeprefix("$"), "point") for s in stages]
    against = measured(stages)
    constant = against.baseline if against is not None else None
    if constant is not None:
        rungs.append(("best constant answer", constant, "warn", "point diamond"))
    low = min(score.value - 2 * (score.se or 0.0) for _, score, _, _ in rungs)
    high = max(score.value + 2 * (score.se or 0.0) for _, score, _, _ in rungs)
    margin = max(0.06 * (high - low), 1e-9 * max(abs(low), abs(high))) or 0.5
    low, high = low - margin, high + margin

    def at(value: float) -> str:
        return f"{100 * (value - low) / (high - low):.2f}%"

    base = tag("i", cls="base", style=f"left:{at(constant.value)}") if constant is not None else ""
    rows = []
    for label, score, colour, shape in rungs:
        error = score.se or 0.0
        span = 100 * (4 * error) / (high - low)
        bar = tag("i", cls="whisker", style=f"left:{at(score.value - 2 * error)};width:{span:.2f}%")
        point = tag("i", cls=shape, style=f"left:{at(score.value)};background:var(--{colour})")
        zero = tag("i", cls="zero", style=f"left:{at(0.0)}") if low < 0 < high else ""
        shown = signed(score.value) + (f" ± {error:.3f}" if error else "")
        rows.append(
            tag("span", label, cls="stage")
            + tag("span", zero, base, bar, point, cls="track")
            + tag("span", esc(shown), cls="value")
        )
    return tag("div", *rows, cls="ladder")


def _moved(numbers: Sequence[float | None], unit: str, write: Callable[[float], str]) -> str:
    values = [write(value) for value in numbers if value is not None]
    if not values:
        return ""
    if len(values) == 1 or values[-2] == values[-1]:
        return f"{values[-1]} {unit}"
    return f"{values[-2]} \u2192 {values[-1]} {unit}"


def _names(tasks: list[str]) -> str:
    return esc(tasks[0]) if len(tasks) == 1 else f"{', '.join(map(esc, tasks[:-1]))} and {esc(tasks[-1])}"
