"""The analysis of a run folder or a text log."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from levelhead.watch.workflows.analysis import Analysis, analyse
from levelhead.watch.workflows.choices import choices, written
from levelhead.watch.workflows.log import batches_of_rollouts, is_workflow_log, read_log

Row = Mapping[str, Any]

_HEAD = 400
_LAST_STAGES = ("grpo", "sft", "start")


def tasks_of(recipe: Any) -> list[str]:
    """Return the names of a resolved recipe's tasks whose policy writes workflows; none where it has no such task."""
    sections = recipe.get("tasks") if isinstance(recipe, Mapping) else None
    found = [section for section in sections if isinstance(section, Mapping)] if isinstance(sections, list) else []
    return [str(s.get("name") or s["kind"]) for s in found if s.get("kind") == "workflow"]


def analyse_run(
    tasks: Iterable[str], rollouts: Iterable[Row], metrics: Iterable[Row], held_out: Iterable[Row] = ()
) -> Analysis | None:
    """Analyse a run from its lines; ``None`` where nothing of it is about workflows.

    Args:
        tasks: Names of the tasks whose answers are workflows.
        rollouts: Lines of its training rollouts.
        metrics: Lines of ``metrics.jsonl``; they tell the validity of steps whose rollouts were not kept.
        held_out: Lines of its last held-out rollouts.
    """
    names = set(tasks)
    batches = batches_of_rollouts(row for row in rollouts if row.get("task") in names)
    answers = [answer for row in held_out if row.get("task") in names and (answer := written(row)) is not None]
    updates = list(_updates(names, metrics))
    if not batches and not answers and not updates:
        return None
    return analyse(batches, updates, choices(answers))


def analyse_path(path: Path) -> Analysis | None:
    """Analyse the run folder or text log at a path; ``None`` where it is neither, or holds nothing about workflows."""
    return _folder(path) if path.is_dir() else _log(path)


def _folder(folder: Path) -> Analysis | None:
    # Most of what the doctor reads has no recipe, and the import costs a tenth of its time.
    import yaml

    try:
        recipe = yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8", errors="replace"))
    except (OSError, yaml.YAMLError):
        return None
    tasks = tasks_of(recipe)
    if not tasks:
        return None
    kept = folder / "rollouts"
    drawn = (row for file in sorted(kept.glob("grpo-*.jsonl.gz")) for row in _rows(file))
    ends = [kept / f"eval-{stage}.jsonl.gz" for stage in _LAST_STAGES]
    last = next((file for file in ends if file.is_file()), None)
    return analyse_run(tasks, drawn, _rows(folder / "metrics.jsonl"), _rows(last) if last else ())


def _log(path: Path) -> Analysis | None:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = [line for line, _ in zip(file, range(_HEAD), strict=False)]
            if not is_workflow_log(head):
                return None
            file.seek(0)
            batches = read_log(file)
    except OSError:
        return None
    return analyse(batches) if batches else None


def _updates(tasks: set[str], metrics: Iterable[Row]) -> Iterator[tuple[int, float, bool]]:
    """Step, validity and whether there was an update, a step; as written last where a resumed run wrote it twice."""
    found: dict[int, tuple[float, bool]] = {}
    for row in metrics:
        step = row.get("step")
        if row.get("stage") != "grpo" or not isinstance(step, int):
            continue
        shares = [share for task in tasks if isinstance(share := row.get(f"validity/{task}"), int | float)]
        norm = row.get("grad_norm", 1.0)
        if shares:
            # A step whose gradient was lost, or that had nothing to learn from, left the policy as it was.
            updated = isinstance(norm, int | float) and math.isfinite(norm) and norm > 0
            found[step] = sum(shares) / len(shares), updated
    for step in sorted(found):
        yield step, *found[step]


def _rows(path: Path) -> Iterator[Row]:
    """Yield the JSON objects of a file of lines, gzipped or not; what is broken is passed over."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict):
                    yield row
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        return
