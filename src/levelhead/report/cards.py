"""The top of the page: what came of the run, in a sentence and one card a task."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from levelhead.report.charts import Chart, key, plain, task_colour
from levelhead.report.markup import duration, esc, figure, pill, signed, tag
from levelhead.report.reading import EVAL_STAGES, Row, Run, step_of
from levelhead.report.series import number, series

STAGE_NAMES = {"start": "before training", "sft": "after SFT", "grpo": "after GRPO"}
STAGE_COLOURS = {"start": "$start", "sft": "$sft", "grpo": "$grpo"}
CLEAR = 2.0
"""Standard errors beyond which a change counts as more than luck."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the last stage did to a task's held-out score.

    Attributes:
        before: Stage compared with.
        after: The last stage.
        change: Difference of the scores.
        errors: The difference in standard errors; ``None`` where those are not known.
    """

    before: str
    after: str
    change: float
    errors: float | None

    @property
    def word(self) -> str:
        """``improved``, ``worse`` or ``no clear change``."""
        if self.errors is not None and abs(self.errors) < CLEAR:
            return "no clear change"
        return "improved" if self.change > 0 else "worse" if self.change < 0 else "no clear change"

    @property
    def tone(self) -> str:
        """Tone of the pill."""
        return {"improved": "good", "worse": "bad"}.get(self.word, "warn")


def stages_of(stages: Row) -> list[tuple[str, Row]]:
    """The stages of a task that have a score, in order."""
    found = [(stage, stages.get(stage)) for stage in EVAL_STAGES]
    return [(s, row) for s, row in found if isinstance(row, dict) and number(row.get("score")) is not None]


def judge(stages: Row) -> Verdict | None:
    """Compare the last stage of a task with the one before; ``None`` where there are not two."""
    known = stages_of(stages)
    if len(known) < 2:
        return None
    (before, a), (after, b) = known[-2:]
    change = float(b["score"]) - float(a["score"])
    spread = math.hypot(number(a.get("se")) or 0.0, number(b.get("se")) or 0.0)
    return Verdict(before, after, change, change / spread if spread > 0 else None)


def headline(run: Run) -> str:
    """One sentence on what came of the run."""
    verdicts = {task: judge(stages) for task, stages in run.summary_tasks.items()}
    known = {task: verdict for task, verdict in verdicts.items() if verdict is not None}
    stop = next((event for event in reversed(run.events) if event.get("action") == "stop"), None)
    if stop is not None:
        return f"Stopped at step {step_of(stop)}: {esc(stop.get('message') or stop.get('code'))}"
    if not known:
        return "No held-out comparison is on record: the run has not been evaluated before and after a stage."
    better = [task for task, verdict in known.items() if verdict.word == "improved"]
    worse = [task for task, verdict in known.items() if verdict.word == "worse"]
    last = next(reversed(known.values()))
    since = {"start": "the start", "sft": "SFT"}.get(last.before, last.before)
    if worse:
        lost = f"Held-out score fell on {_names(worse)}"
        return f"{lost}{f' and rose on {_names(better)}' if better else ''} since {since}."
    if len(better) == len(known):
        who = "the task" if len(known) == 1 else "both tasks" if len(known) == 2 else f"all {len(known)} tasks"
        sure = ", by more than two standard errors" if all(v.errors is not None for v in known.values()) else ""
        return f"Held-out score rose on {who} since {since}{sure}."
    if better:
        return f"Held-out score rose on {_names(better)} since {since}; elsewhere no change beyond chance."
    return f"No change of the held-out score beyond chance since {since}."


def task_cards(run: Run) -> str:
    """One card a task: its verdict, its score by stage with standard errors, validity and length."""
    order = run.tasks
    cards = [
        _card(task, stages, task_colour(order.index(task) if task in order else 0).removeprefix("$"))
        for task, stages in run.summary_tasks.items()
        if stages_of(stages)
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
        seconds = sum(sum(series(run.lines(s), "step_time").finite) for s in steps)
    if seconds:
        entries.append(("time", duration(seconds)))
    counts = [sum(event.get("severity") == s for event in run.events) for s in ("critical", "warning")]
    entries.append(("guard", f"{counts[0]} critical, {counts[1]} warnings" if any(counts) else "nothing to report"))
    if run.checks:
        failed = sum(check.get("status") == "fail" for check in run.checks)
        entries.append(("preflight", f"{failed} failed" if failed else f"{len(run.checks)} checks, none failed"))
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
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [number(values.get(name)) for name in names],
                "y": [plain(name) for name in names],
                "name": STAGE_NAMES[stage],
                "legendgroup": STAGE_NAMES[stage],
                "marker": {"color": STAGE_COLOURS[stage], "size": 11},
                "hovertemplate": f"{STAGE_NAMES[stage]} %{{x:.3f}}<extra></extra>",
            }
        )
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
        [key(STAGE_NAMES[stage], STAGE_COLOURS[stage]) for stage in by_stage],
        height=80 + 26 * len(names),
    )


def _card(task: str, stages: Row, colour: str) -> str:
    known = stages_of(stages)
    verdict = judge(stages)
    last = known[-1][1]
    parts = [tag("h3", tag("i", cls="dot", style=f"background:var(--{colour})"), esc(task))]
    if verdict is not None:
        parts[0] = tag("div", parts[0], pill(verdict.word, verdict.tone), cls="card-head")
        since = {"start": "the start", "sft": "SFT"}[verdict.before]
        sure = f", {abs(verdict.errors):.1f} standard errors" if verdict.errors is not None else ""
        parts.append(tag("p", tag("b", esc(signed(verdict.change))), f" since {since}{sure}", cls="change"))
    else:
        parts.append(tag("p", tag("b", figure(last["score"], 3)), f" {STAGE_NAMES[known[-1][0]]}", cls="change"))
    parts.append(_ladder(known))
    notes = [_moved(known, "validity", "valid", lambda v: f"{v:.0%}"), _moved(known, "length", "tokens", _short)]
    n = number(last.get("n"))
    notes.append(f"{n:.0f} items" if n else "")
    parts.append(tag("p", " · ".join(note for note in notes if note), cls="muted"))
    return tag("article", *parts, cls="card", style=f"--own:var(--{colour})")


def _ladder(known: list[tuple[str, Row]]) -> str:
    """Draw the score of every stage as a point with a bar of two standard errors to either side."""
    scores = [float(row["score"]) for _, row in known]
    errors = [number(row.get("se")) or 0.0 for _, row in known]
    low = min(s - 2 * e for s, e in zip(scores, errors, strict=True))
    high = max(s + 2 * e for s, e in zip(scores, errors, strict=True))
    margin = 0.06 * (high - low) or 0.5
    low, high = low - margin, high + margin

    def at(value: float) -> str:
        return f"{100 * (value - low) / (high - low):.2f}%"

    rows = []
    for (stage, _), score, error in zip(known, scores, errors, strict=True):
        bar = tag("i", cls="whisker", style=f"left:{at(score - 2 * error)};width:{_width(4 * error, high - low)}")
        point = tag("i", cls="point", style=f"left:{at(score)};background:var(--{STAGE_COLOURS[stage][1:]})")
        zero = tag("i", cls="zero", style=f"left:{at(0.0)}") if low < 0 < high else ""
        label = f"{score:.3f}" + (f" \u00b1 {error:.3f}" if error else "")
        rows.append(
            tag("span", STAGE_NAMES[stage], cls="stage")
            + tag("span", zero, bar, point, cls="track")
            + tag("span", esc(label.replace("-", "\u2212")), cls="value")
        )
    return tag("div", *rows, cls="ladder")


def _width(span: float, whole: float) -> str:
    return f"{100 * span / whole:.2f}%"


def _moved(known: list[tuple[str, Row]], name: str, unit: str, write: Any) -> str:
    values = [v for _, row in known if (v := number(row.get(name))) is not None]
    if not values:
        return ""
    if len(values) == 1 or write(values[-2]) == write(values[-1]):
        return f"{write(values[-1])} {unit}"
    return f"{write(values[-2])} \u2192 {write(values[-1])} {unit}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _names(tasks: list[str]) -> str:
    return esc(tasks[0]) if len(tasks) == 1 else f"{', '.join(map(esc, tasks[:-1]))} and {esc(tasks[-1])}"
