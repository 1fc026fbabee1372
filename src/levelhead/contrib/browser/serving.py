"""``levelhead serve browser``: the browser task as an environment of other trainers, over OpenEnv's protocol."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from levelhead.errors import InputError
from levelhead.terminal import say, say_json

if TYPE_CHECKING:
    from levelhead.contrib.browser.task import BrowserTask


def browser(
    task: Annotated[
        list[str] | None, typer.Option("--task", "-t", help="MiniWoB++ page served where a client names none; repeat.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; whoever reaches it can use it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    sessions: Annotated[int, typer.Option(min=1, help="Connections at once, each with a page of its own.")] = 16,
    executable: Annotated[str | None, typer.Option(help="Path of a Chromium; found unless given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as one JSON document.")] = False,
) -> None:
    """Serve MiniWoB++ pages in a real browser over OpenEnv's protocol, until interrupted."""
    import asyncio

    from levelhead.contrib.browser.task import BrowserTask
    from levelhead.recipe.environments import BROWSER_TASKS, Browser

    section = Browser(
        kind="browser", tasks=task or list(BROWSER_TASKS), pages=sessions, spare_pages=0, executable=executable
    )
    asyncio.run(_run(BrowserTask(section), host, port, as_json))


async def _run(task: BrowserTask, host: str, port: int, as_json: bool) -> None:
    import asyncio

    from levelhead.contrib.openenv.server import BrowserServer

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        async with BrowserServer(task, host, port) as server:
            # The browser is started before the address is given, so that a missing one is seen at once.
            await task.pool().running()
            url = f"ws://{host}:{server.port}/ws"
            if as_json:
                say_json({"url": url, "tasks": list(task.section.weights)})
            else:
                say(f"serving {', '.join(task.section.weights)} at {url}; stop with Ctrl-C", error=True)
            await stop.wait()
    except OSError as error:
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port") from error
