"""``levelhead judge``: whether judges are worth asking."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from levelhead.errors import InputError
from levelhead.terminal import say, say_json

if TYPE_CHECKING:
    from levelhead.tasks.judges.calibration import Entry

judge = typer.Typer(help="Find out whether LLM judges are worth asking.", no_args_is_help=True)

_COLUMNS = (
    ("agree", "agreement", "{:.0%}"),
    ("rank", "correlation", "{:+.2f}"),
    ("again", "self_agreement", "{:.0%}"),
    ("length", "length_bias", "{:+.2f}"),
    ("place", "position_bias", "{:+.2f}"),
    ("praise", "flattery", "{:+.2f}"),
    ("orders", "injection", "{:.0%}"),
    ("none", "failures", "{:.0%}"),
    ("p50 s", "latency_median", "{:.2f}"),
    ("p95 s", "latency_p95", "{:.2f}"),
    ("cost", "cost", "{:.4g}"),
)
_OF_CRITERIA = 8
"""Columns that criteria have figures of their own in; calls and their cost are the judge's."""


@judge.callback()
def _group() -> None:
    """Find out whether LLM judges are worth asking."""


@judge.command("calibrate")
def calibrate(
    recipe: Annotated[Path, typer.Argument(help="A YAML recipe.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key, as tasks.0.judges.use=panel.", show_default=False)
    ] = None,
    items: Annotated[int, typer.Option(min=2, max=1000, help="Prompts whose answers are made and graded.")] = 12,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where the calibration goes, unless the recipe says.  [beside the recipe]", show_default=False
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Ask everything anew, whatever caches hold.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Ask each judge about answers of known worth: exit 1 where one is not worth asking.

    The answers are made from the task: perfect, subtly wrong, empty, off-topic, and wrong ones that are wordy, flatter
    the judge or dictate a grade.  Grades are fitted to a common scale, which training uses.
    """
    from levelhead.recipe import load
    from levelhead.tasks.judges.sessions import calibrate_recipe

    default = recipe.with_name(recipe.name.removesuffix(".yaml") + ".judges.json")
    sessions = calibrate_recipe(load(recipe, overrides or []), items, out or default, fresh=fresh)
    if not sessions:
        raise InputError(f"{recipe}: no task has judges; name some in tasks[].judges or tasks[].judge")
    if as_json:
        say_json(
            [
                {"task": one.task, "file": str(one.path), "judges": {n: e.model_dump() for n, e in one.entries.items()}}
                for one in sessions
            ]
        )
    else:
        for one in sessions:
            show(one.task, one.entries)
            say(
                f"written to {one.path}" + ("" if one.used else f"; use it with tasks[].judges.calibration: {one.path}")
            )
    if any(entry.refused for one in sessions for entry in one.entries.values()):
        raise typer.Exit(1)


@judge.command("answers")
def answers(
    recipe: Annotated[Path, typer.Argument(help="A YAML recipe.", show_default=False)],
    out: Annotated[Path, typer.Option(help="File of JSON lines to write.", show_default=False)],
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder of a checkpoint.  [the model as the recipe names it]", show_default=False),
    ] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Override a key.", show_default=False)] = None,
    items: Annotated[
        int | None, typer.Option(min=1, help="Training prompts a task.  [all]", show_default=False)
    ] = None,
) -> None:
    """Write a policy's greedy answers, for judges that compare with them (tasks[].judges.pairwise.reference).

    One line holds a prompt and its answer: of the training prompts in the order of the run, and of those that
    evaluations score.  No judge is asked.
    """
    from levelhead.recipe import load
    from levelhead.training.greedy import write_greedy_answers

    count = write_greedy_answers(load(recipe, overrides or []), checkpoint, out, items)
    say(f"{count} answers written to {out}; compare with them by tasks[].judges.pairwise.reference: {out}")


def show(task: str, entries: dict[str, Entry]) -> None:
    """Print a table of judges, and why some are refused."""
    rows = [["judge", *(head for head, _, _ in _COLUMNS), "verdict"]]
    for title, entry in entries.items():
        rows.append(_row(title, entry, len(_COLUMNS)))
        rows += [_row(f"  {name}", one, _OF_CRITERIA) for name, one in entry.criteria.items()]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    say(f"judges of {task}")
    for row in rows:
        say("  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]))
    for title, entry in entries.items():
        for reason in entry.refused:
            say(f"  {title}: {reason}")


def _row(title: str, entry: Entry, columns: int) -> list[str]:
    values = [_cell(entry.figures.get(key), form) for _, key, form in _COLUMNS[:columns]]
    verdict = "refused" if entry.refused else "undecided" if entry.figures["agreement"] is None else "passes"
    return [title, *values, *["-"] * (len(_COLUMNS) - columns), verdict]


def _cell(value: float | str | None, form: str) -> str:
    return form.format(value) if isinstance(value, int | float) else "-"
