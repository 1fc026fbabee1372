"""Held-out results for a terminal: a table a task, rows by stratum, beside the best constant answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from levelhead.diagnosis.chinese import said
from levelhead.diagnosis.findings import Language
from levelhead.diagnosis.notice import printable
from levelhead.diagnosis.verdict import Verdict
from levelhead.diagnosis.verdict import said as verdict_said
from levelhead.report.scores import (
    TELLING,
    Score,
    Stage,
    measured,
    stage_of,
    stages_of,
    strata_names,
    telling,
    verdict_of,
)
from levelhead.terminal import wrapped
from levelhead.terminal.console import SafeConsole

STAGES = {"start": "untrained", "sft": "after SFT", "grpo": "after GRPO"}
MOST_WITH_METRICS = 6
"""Strata up to which each is shown with its own metrics; more of them take a line each."""

Row = tuple[str, list[str]]


def show_summary(summary: Mapping[str, Any], folder: Path, language: Language = "en") -> None:
    """Print what a run came to: each task's table by stage and the verdict on it.

    Args:
        summary: The content of ``summary.json``, of this version or of an older one.
        folder: Of the run.
        language: Of the reader.
    """
    console = SafeConsole()
    tasks = summary.get("tasks")
    for task, entry in tasks.items() if isinstance(tasks, Mapping) else ():
        if stages := stages_of(entry):
            console.print()
            heads = [said(STAGES[stage.name], language) for stage in stages]
            show_task(console, str(task), stages, heads, language)
            verdict = verdict_of(summary, str(task))
            if verdict is not None:
                verdict = replace(verdict, text=verdict_said(verdict.text, entry, language))
            line = verdict_line(str(task), verdict, stages, language)
            # Words of Chinese are not parted by spaces, where rich would break them.
            shown = line if language == "en" else Text("\n".join(wrapped(line.plain, console.width)), style=line.style)
            console.print(shown)
    if "seconds" in summary:
        whole = said(f"{summary['seconds']:.0f} s in all; scores ± standard error.", language)
        where = f"{whole}  {folder / 'report.html'}"
        console.print(f"\n{where}", soft_wrap=True, highlight=False)


def show_task(
    console: Console, task: str, stages: Sequence[Stage], heads: Sequence[str], language: Language = "en"
) -> None:
    """Print one task's table and the text of the best constant answer.

    Args:
        console: Where to.
        task: Its name.
        stages: The columns; beside them stands what the best constant answer gets.
        heads: Their headings.
        language: Of the reader.
    """
    n = stages[-1].n
    title = said(f"{printable(task, 60)}, {n} held-out items", language) if n else printable(task, 60)
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        collapse_padding=True,
    )
    against = measured(stages)
    table.add_column("", overflow="fold")
    for head in [*heads, *([said("constant", language)] if against else [])]:
        table.add_column(head, justify="right", no_wrap=True)
    strata = _strata(stages, against)
    for section in (strata, _whole(stages, against)):
        for i, (label, cells) in enumerate(section):
            margin = label[: len(label) - len(label.lstrip())]
            shown = label if section is strata else margin + said(label.strip(), language)
            table.add_row(Text(shown), *map(Text, cells[: len(table.columns) - 1]), end_section=i == len(section) - 1)
    console.print(table)
    if against is not None:
        console.print(Text(said(f"Best constant answer: {quoted(against.answer)}", language)))


def show_scores(console: Console, scored: Mapping[str, Mapping[str, Any]], language: Language = "en") -> None:
    """Print a table a task, greedy and sampled side by side, and the task's further metrics.

    Args:
        console: Where to.
        scored: Results as JSON, by way of sampling and task.
        language: Of the reader.
    """
    for name in next(iter(scored.values()), {}):
        columns = {way: stage for way, tasks in scored.items() if (stage := stage_of(way, tasks.get(name))) is not None}
        if columns:
            console.print()
            show_task(console, name, list(columns.values()), [said(way, language) for way in columns], language)
        for metric, value in columns["greedy"].metrics.items() if "greedy" in columns else ():
            if metric not in TELLING:
                console.print(Text(f"{name}  {metric}  {value:.4f}"))


def quoted(answer: str) -> str:
    """Return an answer in quotation marks on one line, its own lines parted by slashes."""
    lines = [shown for line in answer.splitlines() if (shown := printable(line))]
    return f'"{printable(" / ".join(lines), 200)}"' if lines else "to write nothing"


def verdict_line(task: str, verdict: Verdict | None, stages: Sequence[Stage], language: Language = "en") -> Text:
    """Return the verdict on a task as one sentence or two."""
    name = printable(task, 60) + (": " if language == "en" else "\uff1a")
    if verdict is not None:
        style = "bold green" if verdict.improved else "bold yellow"
        return Text(f"{name}{printable(verdict.text, 600)}", style=style)
    if all(stage.constant is None for stage in stages):
        why = "no verdict, for the run was not measured against a constant answer."
    else:
        why = "no verdict, for the run did not come to its end."
    return Text(f"{name}{said(why, language)}", style="dim")


def _strata(stages: Sequence[Stage], against: Stage | None) -> list[Row]:
    """The score of each stratum, the metrics that say how it came about, and the mean over strata."""
    rows: list[Row] = []
    names = strata_names(stages)
    for name in names:
        own = [stage.strata.get(name) for stage in stages]
        n = next((stratum.n for stratum in reversed(own) if stratum is not None), None)
        scores = ["" if stratum is None else _score(stratum.score) for stratum in own]
        constant = against.strata[name].constant if against is not None and name in against.strata else None
        rows.append((f"{printable(name, 60)}{f' ({n})' if n else ''}", [*scores, _maybe(constant, _score)]))
        if len(names) <= MOST_WITH_METRICS:
            rows += _metrics([{} if stratum is None else stratum.metrics for stratum in own], indent="  ")
    return rows


def _whole(stages: Sequence[Stage], against: Stage | None) -> list[Row]:
    """Means over strata and over items, how far they are above the best constant answer, and how answers look."""
    constant = _maybe(against.constant, _score) if against is not None else ""
    rows: list[Row] = []
    if strata_names(stages):
        even = _maybe(against.baseline, _score) if against is not None and against.over_balanced is not None else ""
        rows.append(("balanced score", [*[_maybe(stage.balanced, _score) for stage in stages], even]))
    rows.append(("all items", [*[_score(stage.score) for stage in stages], constant]))
    if not strata_names(stages):
        rows += _metrics([stage.metrics for stage in stages], indent="  ")
    over = [stage.over_constant for stage in stages]
    looks = [
        ("  above the constant", [_maybe(score, _score) for score in over]),
        ("  in standard errors", [_maybe(score, _errors) for score in over]),
        ("  valid", ["" if stage.validity is None else f"{stage.validity:.1%}" for stage in stages]),
        ("  tokens", ["" if stage.length is None else f"{stage.length:.1f}" for stage in stages]),
    ]
    return [(label, cells) for label, cells in [*rows, *looks] if any(cells)]


def _metrics(rows: Sequence[Mapping[str, float]], indent: str) -> Iterator[Row]:
    for name in telling(rows):
        yield f"{indent}{name}", [f"{row[name]:.1%}" if name in row else "" for row in rows]


def _maybe(score: Score | None, write: Callable[[Score], str]) -> str:
    return "" if score is None else write(score)


def _score(score: Score) -> str:
    return f"{score.value:+.2f}" + ("" if score.se is None else f" ± {score.se:.2f}")


def _errors(score: Score) -> str:
    if score.errors is None:
        return ""
    return f"{score.errors:+.1f}" if abs(score.errors) < 99.5 else f"{score.errors:+.0f}"
