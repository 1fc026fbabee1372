"""Many runs at once: which a folder holds, a verdict each, and a table of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelhead.diagnosis.findings import Language
from levelhead.diagnosis.notice import printable
from levelhead.doctor.readers.sources import LOG_SUFFIXES
from levelhead.doctor.report import Report, examine, number
from levelhead.doctor.table import label
from levelhead.errors import InputError
from levelhead.message import Message, Phrase, chinese, in_language_of
from levelhead.terminal import columns, padded

_COLOURS = {"critical": "31;1", "warning": "33;1", "healthy": "32;1", "learns": "32"}
_WORST_FIRST = ("critical", "warning", "undecided", "learns")
_LONGEST = 60
_TOO_MANY = Message("holds more than {runs} runs; give folders inside it", "训练超过 {runs} 次\uff0c请指定其中的文件夹")


@dataclass(frozen=True, slots=True)
class Survey:
    """The diagnoses of a folder's runs.

    Attributes:
        folder: What was read.
        reports: A report a run.
        unread: What looked like a run and could not be read, with the reason.
    """

    folder: Path
    reports: Sequence[Report]
    unread: Mapping[Path, Phrase]

    def fails(self, severity: str) -> bool:
        """Whether a run's verdict is at least as grave as ``severity``."""
        return any(report.fails(severity) for report in self.reports)

    def to_json(self, language: Language = "en") -> dict[str, Any]:
        """Return what ``levelhead doctor FOLDER --json`` prints: the worst verdict, and a document a run."""
        verdicts = {report.diagnosis.verdict for report in self.reports}
        return {
            "verdict": next((verdict for verdict in _WORST_FIRST if verdict in verdicts), "healthy"),
            "runs": [{"run": report.source, **report.to_json(language)} for report in self.reports],
            "unread": [{"run": str(path), "why": why} for path, why in self.unread.items()],
        }

    def lines(self, language: Language = "en") -> Iterator[tuple[str, str]]:
        """Yield a line a run and its colour: verdict, first finding, confidence, first bad step, rows and name."""
        cells = [self._cells(report, language) for report in self.reports]
        widths = [max(columns(row[i]) for row in cells) for i in range(len(cells[0]))]
        for report, row in zip(self.reports, cells, strict=True):
            aligned = (padded(cell, width) for cell, width in zip(row, widths, strict=True))
            yield "  ".join([*aligned, self._name(Path(report.source))]), _COLOURS.get(report.diagnosis.verdict, "")
        if self.unread:
            yield "", ""
            yield f"{label('unread', language)} ({len(self.unread)}):", ""
            for path, why in self.unread.items():
                yield f"  {self._name(path)}: {printable(in_language_of(why, language), 120)}", ""

    def _cells(self, report: Report, language: Language) -> list[str]:
        first = report.diagnosis.findings[0]
        since = "" if first.first_step is None else f"@{number(first.first_step)}"
        rows = f"{report.diagnosis.rows} {label('rows', language)}"
        return [label(report.diagnosis.verdict, language), first.code, f"{first.confidence:.0%}", since, rows]

    def _name(self, path: Path) -> str:
        name = str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else str(path)
        return printable(name, _LONGEST)


def first_line(error: InputError, path: Path) -> Phrase:
    """What keeps a run from being read, in one line without its path."""
    why = error.args[0] if error.args else ""
    lines = (str(text).partition("\n")[0].removeprefix(f"{path}: ") for text in (why, chinese(why)))
    return Phrase(*lines)


def survey(folder: Path, given: str | None = None, keys: Mapping[str, str] | None = None) -> Survey | None:
    """Diagnose every run under a folder; ``None`` where it holds one run, or is no folder.

    Args:
        folder: File or folder.
        given: Format name; recognised by content unless given.
        keys: The user's own ``canonical -> raw key`` pairs.
    """
    runs = runs_of(folder) if folder.is_dir() else []
    if len(runs) < 2:
        return None
    reports, unread = [], {}
    for run in runs[:MOST_RUNS]:
        try:
            reports.append(examine(run, given, keys))
        except InputError as error:
            unread[run] = first_line(error, run)
    if len(runs) > MOST_RUNS:
        unread[folder] = _TOO_MANY(runs=MOST_RUNS)
    if len(reports) + sum(run.is_dir() for run in unread) < 2:
        return None
    return Survey(folder, reports, unread) if reports else None


MOST_RUNS = 500
"""Runs of a folder that are looked at."""
_DEPTH = 4
_PROCESSES = frozenset({"orchestrator", "trainer", "train", "rollout", "inference", "eval", "evaluator", "actor"})
"""Folders of the processes of one run, which belong together."""
_RUN_FILES = ("metrics.jsonl", "trainer_state.json", "logging.jsonl")
_OURS = frozenset({"recipe.yaml", "environment.json", "inputs.json", "events.jsonl", "summary.json", "check.json"})
"""What stands in a run folder of ours beside its metrics, which may be lost."""


def runs_of(folder: Path) -> list[Path]:
    """Return the runs under a folder, sorted: folders that a trainer wrote, and single logs that lie beside them.

    A folder that is itself a run, or that holds nothing that is plainly a run, is returned alone.
    """
    runs = list(_runs(folder, 0))
    if len(runs) == 1 and runs[0].parent == folder and runs[0].is_file():
        return [folder]
    return runs[: MOST_RUNS + 1] or [folder]


def _runs(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.is_symlink())
    except OSError:
        return
    folders = [entry for entry in entries if entry.is_dir()]
    files = [entry for entry in entries if entry.is_file()]
    if _is_run(folders, files):
        yield folder
        return
    below = [run for child in folders if depth < _DEPTH for run in _runs(child, depth + 1)]
    yield from below
    yield from (file for file in files if file.suffix in LOG_SUFFIXES and not file.name.startswith("events"))


def _is_run(folders: list[Path], files: list[Path]) -> bool:
    """Whether a folder with these entries is one run by the layouts that trainers write."""
    if any(f.name in _RUN_FILES or f.suffix == ".wandb" or "tfevents" in f.name for f in files):
        return True
    if len(_OURS & {f.name for f in files}) > 1:
        return True
    if any(f.name.startswith("checkpoint-") and (f / "trainer_state.json").is_file() for f in folders):
        return True
    parts = {f.name for f in folders if (f / "metrics.jsonl").is_file()}
    return bool(parts) and parts <= _PROCESSES
