"""``levelhead watch RUN...``: a live page over run folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from levelhead.terminal import counted, say, say_json


def watch(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders of run folders, such as runs.", show_default=False)
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that other machines reach needs LEVELHEAD_WATCH_KEY.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8321,
    lang: Annotated[str, typer.Option("--lang", help="Language of the page: en, zh.")] = "en",
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as one JSON document.")] = False,
) -> None:
    """Show runs in a browser while they train, until interrupted.

    Curves as they grow, runs on one axis, rollouts, events, findings, and where recipes differ.  Reads the run
    folders and writes nothing.
    """
    from levelhead.diagnosis.findings import language_named
    from levelhead.report.watch import KEY_VARIABLE, WatchServer, serve
    from levelhead.report.watch.run import find_runs

    key = os.environ.get(KEY_VARIABLE, "")
    language = language_named(lang)
    server = WatchServer(find_runs(runs), host, port, key, language)
    if as_json:
        say_json({"url": server.url, "runs": [run.name for run in server.runs]})
    else:
        how = f" (open it with ?key= and the value of {KEY_VARIABLE})" if key else ""
        say(f"{counted(len(server.runs), 'run')} at {server.url}{how}; stop with Ctrl-C")
    serve(server)
