"""What a policy that writes workflows does: how varied it is, what it uses and chooses, and what updates do to it.

Functions over texts, numbers and plain rows, and over a run folder or a text log.  Nothing here needs a parser.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelhead import metrics as metric
from levelhead.contrib.workflow.census import HEADER, Census, Choice, census, choices, written
from levelhead.contrib.workflow.log import Batch, batches_of_rollouts, is_workflow_log, read_log
from levelhead.doctor.readers.values import number_of
from levelhead.doctor.table import Table
from levelhead.documents import DocumentError, load_json, read_lines, read_text
from levelhead.errors import InputError


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that is said of a run whose policy writes workflows.

    Attributes:
        overall: Census of everything it wrote.
        batches: Census of each batch that is on record, by its step; batches without a number are counted from 1.
        validity: Share of valid answers by step: of every step, where the run has noted it, else of ``batches``.
        collapse: What its updates did to its validity; ``at`` are places in ``validity``.
        choices: What it chose on held-out problems, class by class; empty where that is not on record.
    """

    overall: Census
    batches: Mapping[int, Census]
    validity: Mapping[int, float]
    collapse: Collapse
    choices: tuple[Choice, ...] = ()

    @property
    def collapsed_at(self) -> list[int]:
        """Steps whose update was followed by a collapse."""
        steps = list(self.validity)
        return [steps[place] for place in self.collapse.at]

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain values."""
        return {
            "overall": self.overall.to_json(),
            "validity": dict(self.validity),
            "collapse": {
                "updates": self.collapse.updates,
                "collapsed": self.collapse.collapsed,
                "rate": self.collapse.rate,
                "steps": self.collapsed_at,
            },
            "choices": [choice.to_json() for choice in self.choices],
        }

    def tables(self) -> list[Table]:
        """Return the tables of a report: choices, the numbers, the most frequent workflows, operators, structures."""
        overall = self.overall
        choice_tables = [Table("Choices on held-out problems", HEADER, tuple(choice.row() for choice in self.choices))]
        return [
            *(choice_tables if self.choices else []),
            Table("Workflows", ("what", "how many"), self._numbers()),
            Table(
                "Most frequent workflows",
                ("workflow", "count", "share"),
                tuple((text, str(count), f"{share:.1%}") for text, count, share in overall.top),
            ),
            Table("Operators", ("operator", "used by"), tuple((n, f"{s:.1%}") for n, s in overall.operators.items())),
            Table("Structure", ("class", "share"), tuple((n, f"{s:.1%}") for n, s in overall.structures.items())),
        ]

    def _numbers(self) -> tuple[tuple[str, str], ...]:
        overall, collapse = self.overall, self.collapse
        rate = (
            "no update"
            if collapse.rate is None
            else f"{collapse.collapsed} of {collapse.updates} ({collapse.rate:.1%})"
        )
        return (
            ("answers", str(overall.answers)),
            ("valid workflows", f"{overall.valid} ({1.0 - overall.fallback:.1%})"),
            ("fallbacks", f"{overall.answers - overall.valid} ({overall.fallback:.1%})"),
            ("different workflows", str(overall.unique)),
            ("entropy", f"{overall.entropy:.3f} nats"),
            ("updates followed by a collapse", rate),
        )


def analyse(
    batches: Sequence[Batch], updates: Sequence[tuple[int, float, bool]] = (), choices: Sequence[Choice] = ()
) -> Analysis:
    """Analyse the workflows that a run wrote.

    Args:
        batches: What it wrote, in order; of a run that keeps samples, those.
        updates: Step, validity and whether the optimizer stepped after it, of every step; taken from ``batches``
            unless given.
        choices: What it chose on held-out problems.
    """
    censuses: dict[int, Census] = {}
    for place, batch in enumerate(batches, start=1):
        step = place if batch.step is None else batch.step
        while step in censuses:
            step += 1
        censuses[step] = census(batch.workflows)
    step_rows = list(updates) or [
        (step, batch.validity, batch.updated) for step, batch in zip(censuses, batches, strict=True)
    ]
    return Analysis(
        census(text for batch in batches for text in batch.workflows),
        censuses,
        {step: validity for step, validity, _ in step_rows},
        collapse_after_update([validity for _, validity, _ in step_rows], [updated for _, _, updated in step_rows]),
        tuple(choices),
    )


@dataclass(frozen=True, slots=True)
class Collapse:
    """How often an update was followed by a collapse.

    Attributes:
        updates: Updates with rollouts on both sides, before which there was validity to lose.
        collapsed: Those whose next rollouts had lost more than half of it.
        at: Indices of the batches whose update was followed by a collapse.
    """

    updates: int
    collapsed: int
    at: tuple[int, ...]

    @property
    def rate(self) -> float | None:
        """Return the share of updates that were followed by a collapse; ``None`` where there was no update."""
        return self.collapsed / self.updates if self.updates else None


def collapse_after_update(validity: Sequence[float], updated: Sequence[bool] | None = None) -> Collapse:
    """Count the updates whose next rollouts lost more than half of the validity they had.

    Args:
        validity: Share of valid answers of each rollout batch, in order.
        updated: Whether the optimizer stepped after each batch; after every one unless given.

    Raises:
        ValueError: The two differ in length.
    """
    stepped = [True] * len(validity) if updated is None else list(updated)
    if len(stepped) != len(validity):
        raise ValueError(f"{len(validity)} batches need {len(validity)} marks of updates, got {len(stepped)}")
    # The last batch's update has no rollouts after it, and a batch without validity has none to lose.
    judged = [i for i in range(len(validity) - 1) if stepped[i] and validity[i] > 0]
    at = tuple(i for i in judged if validity[i + 1] < validity[i] / 2)
    return Collapse(len(judged), len(at), at)


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
