"""``levelhead check``: prove before the first step that tokens, masks, signs and rewards line up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from levelhead.cli.plan import show_plan
from levelhead.errors import InputError
from levelhead.terminal import say, say_json, width, wrapped

if TYPE_CHECKING:
    from levelhead.diagnosis.findings import Language


def check(
    recipe: Annotated[
        Path | None, typer.Argument(help="A YAML recipe, or the name of one that ships.", show_default=False)
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key, as grpo.steps=20 or tasks.0.weight=2.")
    ] = None,
    lang: Annotated[str, typer.Option("--lang", help="Language of the texts: en, zh.")] = "en",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show checks that pass as well.")] = False,
    evidence: Annotated[bool, typer.Option("--evidence", help="Show the evidence of what is shown.")] = False,
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
        _explain(explain, language, as_json=as_json)
        return
    if recipe is None:
        raise InputError("levelhead check needs a recipe: levelhead check RECIPE; or --explain CHECK")
    if plan:
        show_plan(recipe, overrides or [], gpu, prompt_tokens, processes, as_json=as_json)
        return
    if gpu is not None or prompt_tokens is not None or processes is not None:
        raise InputError("--gpu, --prompt-tokens and --processes are for --plan: levelhead check RECIPE --plan")
    from levelhead.api import check as make
    from levelhead.preflight.progress import Printer
    from levelhead.recipe import load

    printer = None if as_json else Printer(everything=everything, evidence=evidence, language=language)
    report = make(load(recipe, overrides or []), printer=printer)
    if as_json:
        say_json({"status": report.status, "seconds": round(report.seconds, 1), "checks": report.to_json()})
    if report.failures:
        raise typer.Exit(1)


def _explain(name: str, language: Language, *, as_json: bool) -> None:
    """Print what a check proves, how, and what it cannot; the names of all for ``list``."""
    from levelhead.preflight.explain import CATALOGUE, explain

    entries = list(CATALOGUE.values()) if name == "list" else [explain(name)]
    about = {"proves": "证明\uff1a", "how": "方法\uff1a", "cannot": "局限\uff1a"}
    if as_json:
        rows = [{"name": e.name} | {key: getattr(e, key).text({}, language) for key in about} for e in entries]
        say_json(rows)
        return
    if name == "list":
        for entry in entries:
            say(entry.name)
        return
    (entry,) = entries
    say(entry.name)
    for label, chinese in about.items():
        head = chinese if language == "zh" else f"{label + ':':8}"
        text = f"{head}{getattr(entry, label).text({}, language)}"
        for line in wrapped(text, min(width(), 100), 2):
            say(line)
