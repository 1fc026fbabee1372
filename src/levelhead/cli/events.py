"""What a person must know of a run, in a block at its end."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from levelhead.diagnosis.chinese import said
from levelhead.diagnosis.findings import Language
from levelhead.diagnosis.notice import gather, printable
from levelhead.diagnosis.remedies import remedies, settings_text
from levelhead.doctor.readers.sources import read_events
from levelhead.doctor.render import finding_line
from levelhead.doctor.report import Report, examine
from levelhead.errors import InputError
from levelhead.terminal.console import SafeConsole

_COLOURS = {"critical": "bold red", "warning": "yellow"}


def show_events(path: Path, language: Language = "en") -> None:
    """Print to stderr what a person must know of a run: the doctor's findings, and its loud events, each code once.

    The findings are those of ``levelhead doctor`` on the same folder, with the same remedies.  What the guard's look at
    an unfinished curve had seen, and the whole of it no longer shows, is named as passed.

    Args:
        path: ``events.jsonl`` of the run.
        language: Of the reader.
    """
    events, report = read_events(path), _report(path.parent)
    leading = [(f.severity, finding_line(f, report, language)) for f in report.diagnosis.leading] if report else []
    standing = {finding.code for finding in report.diagnosis.findings if finding.severity != "info"} if report else None
    notices, passed = gather(events, standing)
    if not (leading or notices or passed):
        return
    console = SafeConsole(stderr=True)
    console.print(Text("\n" + said(f"What was seen in this run ({path}):", language)), soft_wrap=True)
    for severity, line in leading:
        console.print(Text(f"  {line}", style=_COLOURS[severity]), soft_wrap=True)
    for one in notices:
        head, *rest = one.lines(language, _remedy(one.code, report))
        console.print(Text(f"  {head}", style=_COLOURS[one.severity]), soft_wrap=True)
        for line in rest:
            console.print(Text(f"  {line}"), soft_wrap=True)
    if passed:
        text = said(f"seen on the way and no longer at the end: {', '.join(passed)}", language)
        console.print(Text(f"  {text}"), soft_wrap=True)


def _report(folder: Path) -> Report | None:
    """What the doctor makes of a run; ``None`` where it has no row of training yet."""
    try:
        return examine(folder) if (folder / "metrics.jsonl").is_file() else None
    except InputError:
        return None


def _remedy(code: str, report: Report | None) -> str:
    """What to change for an event where the doctor has nothing more urgent; empty where there is nothing."""
    if report is None or report.diagnosis.leading:
        return ""
    changes = remedies(code, report.observed, recipe=report.recipe)
    return settings_text(changes[0].settings) if changes else ""


def why_stopped(path: Path, language: Language = "en") -> str:
    """Return in one line what stopped a run before its end: the last event that is a stop."""
    stops = [event for event in read_events(path) if event.get("action") == "stop"]
    if not stops:
        return said(f"stopped; see {path}", language)
    last = stops[-1]
    return said(f"stopped at step {last.get('step')} by {printable(last['code'], 80)}; see {path}", language)
