"""Which runs a folder holds: one that a trainer wrote, or several of them side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from levelhead.doctor.readers.sources import LOG_SUFFIXES

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
