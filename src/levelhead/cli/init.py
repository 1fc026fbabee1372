"""``levelhead init``: a recipe, a reward file and its test, from a data file and a model."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from levelhead.errors import InputError
from levelhead.terminal import say, say_json

if TYPE_CHECKING:
    from levelhead.scaffold.write import Plan

MODEL = "base-tiny"
"""Offered where no model is named: it ships, and trains in minutes on a CPU."""


def init(
    name: Annotated[str | None, typer.Argument(help="Name of the run.  [name of the data file]")] = None,
    data: Annotated[
        str | None, typer.Option(help="JSONL, JSON, CSV or Parquet file, or a Hugging Face data set.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Hugging Face name, folder, or base-tiny, which ships.")] = None,
    reward: Annotated[
        str | None, typer.Option(help="number, exact, contains, json, or FILE.py:function.  [by the answers]")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Column of the prompts.  [by its name]")] = None,
    answer: Annotated[str | None, typer.Option(help="Column of the right answers.  [by its name]")] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Memory of the GPU that will train, as 24GB.  [this machine's device]")
    ] = None,
    to: Annotated[Path, typer.Option("--to", help="Folder of the files.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and ask nothing.")] = False,
) -> None:
    """Write a recipe, a reward file and its test for your own data; asks for what the flags leave open."""
    from levelhead.scaffold.write import InitOptions, plan

    asks = sys.stdin.isatty() and not as_json
    if data is None:
        data = _asked("Data file (JSONL, CSV, Parquet) or data set", "") if asks else None
    if not data:
        raise InputError("levelhead init: give --data FILE; there is no terminal to ask at")
    if model is None:
        model = _asked("Model (Hugging Face name or folder)", MODEL) if asks else MODEL
    if reward is None and asks:
        word = _asked("Reward (number, exact, contains, json, FILE.py:function; empty: by the answers)", "")
        reward = word or None
    stem = name or re.sub(r"^[.]+|[^A-Za-z0-9._-]+", "-", Path(data).stem)
    options = InitOptions(stem, model, data, reward, prompt, answer, to, gpu)
    project = plan(options)
    project.write()
    recipe, *others = [str(path) for path in project.files]
    if as_json:
        say_json(
            {
                "recipe": recipe,
                "files": [recipe, *others],
                "rows": project.rows,
                "prompt": project.prompt,
                "answer": project.answer,
                "reward": project.reward,
                "context": project.model.context,
                "chat_template": project.model.template,
                "max_new_tokens": project.model.room,
                "note": project.model.note,
                "memory": project.memory,
            }
        )
    else:
        _describe(project)


def _describe(project: Plan) -> None:
    recipe, *others = [str(path) for path in project.files]
    if project.model.note:
        say(f"levelhead: {project.model.note}; max_new_tokens is a guess", error=True)
    say(
        f"{project.rows:,} rows; prompt: {project.prompt}; right answer: {project.answer or 'none'}; "
        f"reward: {project.reward}"
    )
    if project.model.longest_prompt:
        say(f"longest prompt: {project.model.longest_prompt:,} of {project.model.context or '?'} tokens of context")
    if project.memory:
        say(f"memory: {project.memory}")
    say("wrote " + ", ".join([recipe, *others]))
    say(f"next: levelhead check {recipe}, then levelhead train {recipe}")


def _asked(question: str, default: str) -> str:
    return str(typer.prompt(question, default=default, show_default=bool(default), err=True)).strip()
