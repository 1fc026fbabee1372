"""``levelhead export``: a run as a model that others can load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from levelhead.errors import InputError
from levelhead.terminal import say, say_json


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Folder that is written.  [RUN/export]")] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Merge an adapter into the weights of its base.")] = False,
    checkpoint: Annotated[
        str | None, typer.Option(help="best, or step-000100.  [best, else the newest]", show_default=False)
    ] = None,
    dtype: Annotated[str, typer.Option(help="Type of the weights: auto, float32, bfloat16, float16.")] = "auto",
    push: Annotated[
        str | None, typer.Option("--push", help="Also upload it to the Hugging Face Hub.", metavar="NAME")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="With --push: a private repository.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Write a run's weights, tokenizer, chat template, generation config and model card; push them if asked."""
    from levelhead.export import write

    kind = next((word for word in get_args(write.Dtype) if word == dtype), None)
    if kind is None:
        raise InputError(f"--dtype {dtype}: give one of {', '.join(get_args(write.Dtype))}")
    if private and push is None:
        raise InputError("--private is for --push NAME")
    result = write.export(run, out or run / "export", merge=merge, checkpoint=checkpoint, dtype=kind)
    url = write.push(result.folder, push, private=private) if push is not None else ""
    facts: dict[str, Any] = {
        "folder": str(result.folder),
        "checkpoint": result.checkpoint,
        "origin": result.origin,
        "merged": result.merged,
        "adapter": result.adapter,
        "precision": result.precision,
        "url": url,
    }
    if as_json:
        say_json(facts)
        return
    what = "adapter" if result.adapter else "weights, the adapter merged" if result.merged else "weights"
    source = f"{result.checkpoint} ({result.origin})"
    say(f"{result.folder}: {what} of {source}, tokenizer, chat template, generation config, model card")
    if result.adapter:
        say("an adapter alone: --merge writes weights that need no base")
    if result.precision:
        say(result.precision)
    if url:
        say(url)
