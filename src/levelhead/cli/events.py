"""What a person must know of a run, in a block at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from levelhead.diagnosis.chinese import said
from levelhead.diagnosis.findings import Language
from levelhead.diagnosis.notice import gather, printable
from levelhead.doctor.readers.sources import read_events
from levelhead.documents import DocumentError, load_json, read_lines
from levelhead.errors import InputError
from levelhead.recipe.history import in_force
from levelhead.terminal.console import SafeConsole

_COLOURS = {"critical": "bold red", "warning": "yellow"}


def show_events(path: Path, language: Language = "en") -> None:
    """Print the warnings and critical events of a run to stderr, each code once with how often it was seen.

    Nothing is printed for a run that has none.

    Args:
        path: ``events.jsonl`` of the run.
        language: Of the reader.
    """
    events = read_events(path)
    told = gather(events, _rows(path.with_name("metrics.jsonl")), in_force(path.parent)) if events else []
    if not told:
        return
    console = SafeConsole(stderr=True)
    console.print(Text("\n" + said(f"What was seen in this run ({path}):", language)), soft_wrap=True)
    for one in told:
        head, *rest = one.lines(language)
        console.print(Text(f"  {head}", style=_COLOURS[one.severity]), soft_wrap=True)
        for line in rest:
            console.print(Text(f"  {line}"), soft_wrap=True)


def _rows(path: Path) -> list[Mapping[str, Any]]:
    """Lines of a run's metrics; what cannot be read is left out."""
    rows: list[Mapping[str, Any]] = []
    with contextlib.suppress(OSError, InputError):
        for line in read_lines(path):
            with contextlib.suppress(DocumentError):
                row = load_json(line)
                if isinstance(row, dict):
                    rows.append(row)
    return rows


def why_stopped(path: Path, language: Language = "en") -> str:
    """Return in one line what stopped a run before its end: the last event that is a stop."""
    stops = [event for event in read_events(path) if event.get("action") == "stop"]
    if not stops:
        return said(f"stopped; see {path}", language)
    last = stops[-1]
    return said(f"stopped at step {last.get('step')} by {printable(last['code'], 80)}; see {path}", language)
