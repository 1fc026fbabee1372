"""``levelhead train``: SFT and GRPO as a recipe says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levelhead.errors import EngineError, PolicyError, RewardError
from levelhead.terminal import say, say_json

if TYPE_CHECKING:
    from levelhead.diagnosis.findings import Language


def train(
    recipe: Annotated[Path, typer.Argument(help="A YAML recipe, or the name of one that ships.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key, as grpo.steps=20 or tasks.0.weight=2.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.  [runs/NAME]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", help="With --resume: go on from this checkpoint (step-000100, or start), not from the newest."
        ),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept-changes",
            help="With --resume: keys of the recipe that may have changed since, separated by commas, or all.",
        ),
    ] = None,
    print_recipe: Annotated[bool, typer.Option("--print-recipe", help="Print the resolved recipe and leave.")] = False,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Everything up to the first forward: data, tokenizer, the model's shape.")
    ] = False,
    no_check: Annotated[bool, typer.Option("--no-check", help="Start without the preflight.")] = False,
    lang: Annotated[str, typer.Option("--lang", help="Language of the terminal and the report: en, zh.")] = "en",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Train a policy as a recipe says: SFT, then GRPO."""
    from levelhead.diagnosis.findings import language_named
    from levelhead.recipe import dump, load, plain

    language = language_named(lang)
    resolved = load(recipe, overrides or [])
    if print_recipe:
        if as_json:
            say_json(plain(resolved))
        else:
            say(dump(resolved), end="")
        return
    if dry:
        from levelhead.preflight.run import dry_run, dry_run_text

        facts = dry_run(resolved)
        if as_json:
            say_json(facts)
        else:
            say(dry_run_text(facts, language))
        return
    changes = keys_of(accept)
    resumed = {"resume_from": start, "accept_changes": changes} if start or changes else {}
    run(resolved, out, resume, as_json, check=False if no_check else None, language=language, **resumed)


def keys_of(accept: list[str] | None) -> list[str]:
    """Return the keys that ``--accept-changes`` names, which may be repeated and separated by commas."""
    return [key.strip() for keys in accept or () for key in keys.split(",") if key.strip()]


def run(
    recipe: Any,
    out: Path | None,
    resume: bool,
    as_json: bool,
    check: bool | None = None,
    language: Language = "en",
    **resumed: Any,
) -> None:
    """Train, print the summary and what a person must know of the run, and leave with the outcome's exit code."""
    from levelhead.api import train as start
    from levelhead.cli.events import show_events, why_stopped
    from levelhead.cli.summary import show_summary
    from levelhead.diagnosis.chinese import said
    from levelhead.training.rundir import default_folder

    out = out or default_folder(recipe)
    first = not int(os.environ.get("RANK", "0"))  # of several processes, the first speaks
    try:
        result = start(recipe, out=out, resume=resume, check=check, language=language, **resumed)
    except (EngineError, PolicyError, RewardError):
        if first:
            show_events(out / "events.jsonl", language)
        raise
    code = {"interrupted": 130, "stopped": 1}.get(result.outcome, 0)
    if first:
        if as_json:
            say_json({"outcome": result.outcome, "run": str(result.folder), **result.summary})
        else:
            show_summary(result.summary, result.folder, language)
        show_events(result.folder / "events.jsonl", language)
        if result.outcome == "interrupted":
            text = f"interrupted and saved; continue with --resume --out {result.folder}"
            say(f"levelhead: {said(text, language)}", error=True)
        if result.outcome == "stopped":
            say(f"levelhead: {why_stopped(result.folder / 'events.jsonl', language)}", error=True)
    if code:
        raise typer.Exit(code)
