"""What a notebook shows of a run: each task's score by stage beside the best constant answer, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from levelhead.report.scores import Score, stages_of, verdict_of


def cell(outcome: str, folder: Path, summary: Mapping[str, Any]) -> str:
    """Return the HTML of a notebook's cell, every text escaped.

    Args:
        outcome: ``done``, ``interrupted`` or ``stopped``.
        folder: Of the run.
        summary: As in ``summary.json``.
    """
    tasks = summary.get("tasks")
    parts = [_task(str(name), entry, summary) for name, entry in tasks.items()] if isinstance(tasks, Mapping) else []
    return f"<p>{escape(f'{outcome}: {folder}')}</p>{''.join(parts)}<p>{escape(str(folder / 'report.html'))}</p>"


def _task(name: str, entry: Any, summary: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(stage.name)}</td><td>{_shown(stage.main)}</td><td>{_shown(stage.baseline)}</td></tr>"
        for stage in stages_of(entry)
    )
    verdict = verdict_of(summary, name)
    text = "" if verdict is None else f"<p>{escape(verdict.text)}</p>"
    head = "<tr><th></th><th>score</th><th>best constant answer</th></tr>"
    return f"<b>{escape(name)}</b><table>{head}{rows}</table>{text}"


def _shown(score: Score | None) -> str:
    return "" if score is None else f"{score.value:+.3f}" + (f" &plusmn; {score.se:.3f}" if score.se else "")
