"""``levelhead check``: prove before the first step that tokens, masks, signs and rewards line up."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from levelhead.cli.plan import show_plan
from levelhead.errors import InputError
from levelhead.terminal import columns, counted, say, say_json, width, wrapped

if TYPE_CHECKING:
    from levelhead.diagnosis.findings import Language
    from levelhead.preflight import Report

_BESIDE = 8
"""Spaces beside the three columns of the table, and a mark of punctuation that may stand behind the end of a line."""
_LEAST = 20
"""Columns that text gets at least."""
_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red"}


def check(
    recipe: Annotated[
        Path | None, typer.Argument(help="A YAML recipe, or the name of one that ships.", show_default=False)
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key, as grpo.steps=20 or tasks.0.weight=2.")
    ] = None,
    lang: Annotated[str, typer.Option("--lang", help="Language of the table: en, zh.")] = "en",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    evidence: Annotated[bool, typer.Option("--evidence", help="Show the evidence of every check.")] = False,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="CHECK",
            help="Say what a check proves, how, and what it cannot; 'list' names all checks.",
            show_default=False,
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what memory the run will take, from the model's config alone.")
    ] = False,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="SIZE", help="Plan for a GPU of this memory, as 80GB.", show_default=False),
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option("--prompt-tokens", min=1, help="Plan for prompts of so many tokens.", show_default=False),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, help="Plan for one of so many processes.", show_default=False),
    ] = None,
) -> None:
    """Check a recipe on its real model, tokenizer and tasks, without training: exit 1 where a check fails."""
    from levelhead.diagnosis.findings import language_named

    language = language_named(lang)
    if explain is not None:
        _explain(explain, as_json=as_json)
        return
    if recipe is None:
        raise InputError("levelhead check needs a recipe: levelhead check RECIPE; or --explain CHECK")
    if plan:
        show_plan(recipe, overrides or [], gpu, prompt_tokens, processes, as_json=as_json)
        return
    if gpu is not None or prompt_tokens is not None or processes is not None:
        raise InputError("--gpu, --prompt-tokens and --processes are for --plan: levelhead check RECIPE --plan")
    from levelhead.api import check as make
    from levelhead.recipe import load

    report = make(load(recipe, overrides or []))
    if as_json:
        say_json({"status": report.status, "seconds": round(report.seconds, 1), "checks": report.to_json()})
    else:
        show(report, everything=evidence, language=language)
    if report.failures:
        raise typer.Exit(1)


def _explain(name: str, *, as_json: bool) -> None:
    """Print what a check proves, how, and what it cannot; the names of all for ``list``."""
    from levelhead.preflight.explain import CATALOGUE, explain

    entries = list(CATALOGUE.values()) if name == "list" else [explain(name)]
    if as_json:
        say_json([asdict(entry) for entry in entries])
        return
    if name == "list":
        for entry in entries:
            say(entry.name)
        return
    (entry,) = entries
    say(entry.name)
    for label, text in (("proves", entry.proves), ("how", entry.how), ("cannot", entry.cannot)):
        say(textwrap.fill(f"{label + ':':8}{text}", min(width(), 100), initial_indent="  ", subsequent_indent=" " * 10))


def show(report: Report, *, everything: bool = False, language: Language = "en") -> None:
    """Print a line a check, and below it the evidence and the fix of what did not pass."""
    from rich.table import Table
    from rich.text import Text

    from levelhead.preflight.chinese import told, told_in
    from levelhead.terminal.console import SafeConsole

    table = Table(title=told("Preflight", language), title_justify="left", show_header=False, box=None, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    console = SafeConsole()
    labels = [columns(text) for c in report.checks for text in (told(c.status, language), c.name)]
    room = console.width - _BESIDE - max(labels[::2], default=0) - max(labels[1::2], default=0)

    def broken(text: str) -> str:
        """Words of Chinese are not parted by spaces, where rich would break them."""
        return text if language == "en" else "\n".join(wrapped(text, max(room, _LEAST)))

    for outcome in report.checks:
        detail = Text(broken(told(outcome.message, language)))
        wrong = outcome.status != "pass"
        if wrong and outcome.fix:
            detail.append("\n" + broken(told(f"fix: {outcome.fix}", language)), style="italic")
        if wrong or everything:
            for key, value in outcome.evidence.items():
                shown = json.dumps(told_in(value, language), ensure_ascii=False, default=str)
                detail.append(f"\n  {key}: {shown}", style="dim")
        table.add_row(Text(told(outcome.status, language), style=_STYLES[outcome.status]), outcome.name, detail)
    console.print(table)
    counts = {status: sum(c.status == status for c in report.checks) for status in _STYLES}
    warned = counted(counts["warn"], "warning")
    summary = f"{counts['pass']} passed, {warned}, {counts['fail']} failed in {report.seconds:.1f} s"
    console.print(Text(told(summary, language), style=_STYLES[report.status]))
