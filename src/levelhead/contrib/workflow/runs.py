"""The analysis of a run folder or a text log."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from levelhead import metrics as metric
from levelhead.contrib.workflow.analysis.choices import choices, written
from levelhead.contrib.workflow.analysis.log import batches_of_rollouts, is_workflow_log, read_log
from levelhead.contrib.workflow.analysis.tables import Analysis, analyse
from levelhead.doctor.readers.values import number_of
from levelhead.documents import DocumentError, load_json, read_lines, read_text
from levelhead.errors import InputError

Row = Mapping[str, Any]

_HEAD = 400
_MOST_STEPS = 10**15
_LONGEST = 1 << 16
"""Characters of a line of a text log that are looked at."""
_MOST = 64 << 20
"""Characters of a file of rollouts or metrics that are read."""
_LAST_STAGES = ("grpo", "sft", "start")


def tasks_of(recipe: Any) -> list[str]:
    """Return the names of a resolved recipe's tasks whose policy writes workflows; none where it has no such task."""
    sections = recipe.get("tasks") if isinstance(recipe, Mapping) else None
    task_sections = (
        [section for section in sections if isinstance(section, Mapping)] if isinstance(sections, list) else []
    )
    return [str(s.get("name") or "workflow") for s in task_sections if s.get("kind") == "workflow"]


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
    batches = batches_of_rollouts(row for row in rollouts if _named(row, names))
    answers = [answer for row in held_out if _named(row, names) and (answer := written(row)) is not None]
    updates = list(_updates(names, metrics))
    if not batches and not answers and not updates:
        return None
    return analyse(batches, updates, choices(answers))


def _named(row: Row, names: set[str]) -> bool:
    task = row.get("task")
    return isinstance(task, str) and task in names


def analyse_path(path: Path) -> Analysis | None:
    """Analyse the run folder or text log at a path; ``None`` where it is neither, or holds nothing about workflows."""
    if not path.exists():  # standard input, which has been read
        return None
    return _folder(path) if path.is_dir() else _log(path)


def _folder(folder: Path) -> Analysis | None:
    # Most of what the doctor reads has no recipe, and the import costs a tenth of its time.
    from levelhead.documents.yaml_text import load_yaml

    try:
        recipe = load_yaml(read_text(folder / "recipe.yaml"))
    except (OSError, InputError, DocumentError):
        return None
    tasks = tasks_of(recipe)
    if not tasks:
        return None
    rollouts = folder / "rollouts"
    drawn = (row for file in sorted(rollouts.glob("grpo-*.jsonl.gz")) for row in _rows(file))
    ends = [rollouts / f"eval-{stage}.jsonl.gz" for stage in _LAST_STAGES]
    last = next((file for file in ends if file.is_file()), None)
    return analyse_run(tasks, drawn, _rows(folder / "metrics.jsonl"), _rows(last) if last else ())


def _log(path: Path) -> Analysis | None:
    try:
        if not is_workflow_log(itertools.islice(read_lines(path, _LONGEST), _HEAD)):
            return None
        batches = read_log(read_lines(path, _LONGEST))
    except (OSError, EOFError, zlib.error, InputError):
        return None
    return analyse(batches) if batches else None


def _updates(tasks: set[str], metrics: Iterable[Row]) -> Iterator[tuple[int, float, bool]]:
    """Step, validity and whether there was an update, a step; as written last where a resumed run wrote it twice."""
    update_by_step: dict[int, tuple[float, bool]] = {}
    for row in metrics:
        step = row.get("step")
        if row.get("stage") != "grpo" or not isinstance(step, int) or abs(step) > _MOST_STEPS:
            continue
        shares = [
            share for task in tasks if (share := number_of(row.get(metric.VALIDITY_BY_TASK.of(task)))) is not None
        ]
        shares = [share for share in shares if 0 <= share <= 1]
        norm = number_of(row.get(metric.GRAD_NORM, 1.0))
        if shares:
            # A step whose gradient was lost, or that had nothing to learn from, left the policy as it was.
            updated = norm is not None and math.isfinite(norm) and norm > 0
            update_by_step[step] = sum(shares) / len(shares), updated
    for step in sorted(update_by_step):
        yield step, *update_by_step[step]


def _rows(path: Path) -> Iterator[Row]:
    """Yield the JSON objects of a file of lines, gzipped or not; what is broken is passed over."""
    try:
        for line in read_lines(path, most=_MOST):
            try:
                row = load_json(line)
            except DocumentError:
                continue
            if isinstance(row, dict):
                yield row
    except (OSError, EOFError, zlib.error, InputError):
        return
