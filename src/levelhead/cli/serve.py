"""``levelhead serve``: environments for other trainers, and the servers that sample."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from levelhead.documents.modes import open_to_readers
from levelhead.errors import InputError
from levelhead.terminal import say, say_json

if TYPE_CHECKING:
    from levelhead.recipe import Recipe
    from levelhead.rollout.generators.vllm.command import Command

serve = typer.Typer(
    help="Serve an environment to other trainers, or start the servers that sample.", no_args_is_help=True
)


@serve.callback()
def _serve() -> None:
    """Serve an environment to other trainers, or start the servers that sample."""


for _name, _module in {"browser": "levelhead.contrib.browser.serving"}.items():
    serve.command(_name)(getattr(import_module(_module), _name))


@serve.command("policy")
def policy(
    recipe: Annotated[Path, typer.Argument(help="Recipe with generator: {kind: vllm, ...}.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key: --set generator.sync=adapter; repeat.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Of generator.urls, the server to start; all unless given.")] = None,
    start: Annotated[
        bool, typer.Option("--run", help="Start the server here instead of printing its command.")
    ] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="The server runs on a CPU.")] = False,
    python: Annotated[str | None, typer.Option(help="Python of the environment that has vLLM.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Print the command that starts a vLLM server as a recipe needs it, or run it."""
    from levelhead.recipe import load
    from levelhead.rollout.generators.vllm.command import engine_of, serve_command

    resolved = load(recipe, overrides or [])
    urls = [one.rstrip("/") for one in engine_of(resolved).urls]
    if url is not None and url.rstrip("/") not in urls:
        raise InputError(f"--url {url} is none of generator.urls ({', '.join(urls)})")
    urls = [url.rstrip("/")] if url is not None else urls
    if start and len(urls) > 1:
        raise InputError(f"--run starts one server, and generator.urls has {len(urls)}; say which with --url")
    source, dtype = _served(resolved)
    commands = [serve_command(resolved, one, source, dtype=dtype, cpu=cpu, python=python) for one in urls]
    if start:
        _start(commands[0])
    elif as_json:
        say_json([{"url": c.url, "variables": dict(c.variables), "arguments": list(c.arguments)} for c in commands])
    else:
        for command in commands:
            say(command.shell)


def _served(recipe: Recipe) -> tuple[str, str]:
    """What a server loads, and the type that it computes in.

    A model that the recipe builds itself is saved to the folder that trainer and servers share.
    """
    from levelhead.policy.device import resolve_device, resolve_dtype

    device, whole = resolve_device(recipe.model.device), recipe.model.lora is None
    dtype = str(resolve_dtype(recipe.model.dtype, device, whole=whole)).removeprefix("torch.")
    if recipe.model.source is not None:
        return recipe.model.source, dtype
    from levelhead.training.prepare import prepare

    shared = getattr(recipe.generator, "shared", None)
    if shared is None:
        raise InputError(
            "generator.shared: a model that the recipe builds itself is saved there for the server; set it"
        )
    folder = Path(shared).expanduser().absolute() / "model"
    if not (folder / "config.json").is_file():
        prepare(recipe).policy.save(folder)
        open_to_readers(folder)  # the server may be another user's
        say(f"saved the recipe's model to {folder}", error=True)
    return str(folder), dtype


def _start(command: Command) -> None:
    """Become the server: signals and the exit code are its own."""
    import os
    import shutil

    program = shutil.which(command.arguments[0])
    if program is None:
        raise InputError(
            f"{command.arguments[0]} is not on the path; install vllm, or name the Python of the environment that has "
            "it with --python"
        )
    variables = {**os.environ, **command.variables}
    if command.key:
        key = os.environ.get(command.key, "")
        if not key:
            raise InputError(f"generator.api_key_env names {command.key}, and that environment variable is not set")
        variables["VLLM_API_KEY"] = key
    say(command.shell, error=True)
    os.execve(program, [*command.arguments], variables)  # noqa: S606 - no shell is wanted
