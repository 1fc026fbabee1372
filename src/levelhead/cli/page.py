"""The page of all commands and options: ``python -m levelhead.cli.page > docs/cli.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer

from levelhead.cli.main import app

_INTRODUCTION = """# Commands

Every command with its arguments and options, made from the code (`python -m levelhead.cli.page > docs/cli.md`).

Commands that print a result take `--json`: one JSON document on stdout and nothing else there; progress goes to stderr.
`--debug`, with any command, shows the traceback of an error. `levelhead --install-completion` completes names in your
shell.

| exit code | means |
|---|---|
| 0 | done; of `check`: passed, perhaps with warnings |
| 1 | the guard stopped the run, a check failed, or `--fail-on` was met |
| 2 | bad input: a line on stderr names the file and the key |
| 3 | the run failed |
| 130 | interrupted; `--resume` goes on |
"""


def page() -> str:
    """Return the page as Markdown, a section a command."""
    return "\n".join([_INTRODUCTION, *_sections(typer.main.get_command(app), "levelhead")])


def _sections(command: Any, name: str) -> Iterator[str]:
    children = getattr(command, "commands", {})
    if name != "levelhead":
        yield _section(command, name)
    for child, inner in children.items():
        yield from _sections(inner, f"{name} {child}")


def _section(command: Any, name: str) -> str:
    """Return one command: its line of usage, its help and its parameters."""
    context = command.context_class(command, info_name=name)
    usage = "" if hasattr(command, "commands") else " ".join([name, *command.collect_usage_pieces(context)])
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    rows = [f"| {_code(names)} | {_text(text)} |" for names, text in filter(None, records) if "--help" not in names]
    table = ["| | |", "|---|---|", *rows, ""] if rows else []
    return "\n".join([f"## {name}", "", *([_code(usage), ""] if usage else []), *_paragraphs(command.help), *table])


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _paragraphs(text: str | None) -> list[str]:
    return [line for block in (text or "").split("\n\n") if block.strip() for line in (_text(block), "")]


def _text(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
