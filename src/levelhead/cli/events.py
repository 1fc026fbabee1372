"""What a person must know of a run, in a block at its end."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from levelhead.diagnosis.notice import gather, printable
from levelhead.doctor.readers.sources import read_events
from levelhead.terminal.console import SafeConsole

_COLOURS = {"critical": "bold red", "warning": "yellow"}


def show_events(path: Path) -> None:
    """Print the warnings and critical events of a run to stderr, each code once with how often it was seen.

    Nothing is printed for a run that has none.
    """
    told = gather(read_events(path))
    if not told:
        return
    console = SafeConsole(stderr=True)
    console.print(Text(f"\nWhat was seen in this run ({path}):"), soft_wrap=True)
    for one in told:
        head, *rest = one.lines()
        console.print(Text(f"  {head}", style=_COLOURS[one.severity]), soft_wrap=True)
        for line in rest:
            console.print(Text(f"  {line}"), soft_wrap=True)


def why_stopped(path: Path) -> str:
    """Return in one line what stopped a run before its end: the last event that is a stop."""
    stops = [event for event in read_events(path) if event.get("action") == "stop"]
    if not stops:
        return f"stopped; see {path}"
    last = stops[-1]
    return f"stopped at step {last.get('step')} by {printable(last['code'], 80)}; see {path}"
