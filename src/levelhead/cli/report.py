"""``levelhead report RUN``: write, or write again, the run's page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from levelhead.terminal import say, say_json


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run, such as runs/demo.", show_default=False)],
    lang: Annotated[str, typer.Option("--lang", help="Language of the page: en, zh.")] = "en",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Write report.html into a run's folder, from the plain files in it.

    The page is one file and opens without a network.  What a run does not have is left out.
    """
    from levelhead.diagnosis.findings import language_named
    from levelhead.report import write

    page = write(run, language_named(lang))
    size = page.stat().st_size
    if as_json:
        say_json({"report": str(page), "bytes": size})
    else:
        say(f"{page} ({size / 1e6:.1f} MB)")
