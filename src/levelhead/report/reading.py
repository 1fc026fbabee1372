"""Reading a run's plain files, forgivingly: what is missing or broken becomes a note, not a failure."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from levelhead import metrics as metric
from levelhead.documents import DocumentError, load_json, read_lines, read_text
from levelhead.documents.yaml_text import load_yaml
from levelhead.errors import InputError
from levelhead.message import Message
from levelhead.metrics import held_out
from levelhead.recipe.history import RECIPE, History

MARKS_OF_A_RUN = ("metrics.jsonl", "summary.json", "recipe.yaml", "events.jsonl")
"""A folder with none of these holds no run."""
NO_FOLDER = Message(
    "{folder}: no such folder; give the folder of a run, such as runs/demo",
    "{folder}：没有这个文件夹；请给出训练文件夹，如 runs/demo",
)
NO_RUN = Message(
    "{folder}: the folder holds no run (none of {files})", "{folder}：该文件夹里没有训练（没有 {files} 中的任何一个）"
)

EVAL_STAGES = ("start", "sft", "grpo")
"""Between-stage evaluations, in order."""

Row = dict[str, Any]

_MOST_STEPS = 10**15
_LONGEST_NAME = 200
_LONGEST_LINE = 8 << 20
_MOST = 64 << 20
"""Characters of a file of lines that are read."""
_MOST_TASKS = 64
_MOST_SAMPLED = 256
"""Files of sampled rollouts that are read, the first and the last ones."""


@dataclass(slots=True)
class Run:
    """Everything that a run left behind.

    Attributes:
        name: Name of the run, from its recipe, else its folder's.
        recipe: The resolved recipe, parsed; empty where it could not be read.
        recipe_text: The same as it stands in the file.
        environment: Versions, hardware, revision.
        metrics: Lines of ``metrics.jsonl``; a step that a resumed run wrote twice counts once, as written last.
        events: Lines of ``events.jsonl``.
        summary: ``summary.json``.
        checks: Entries of ``check.json``.
        diagnostics: Entries of ``diagnostics.json``, one a first step.
        pareto: ``pareto.json``, of a run with several objectives.
        samples: Held-out rollouts by evaluation stage (``start``, ``sft``, ``grpo``).
        rollouts: Training rollouts by file name, in order of step.
        notes: What was missing or broken, one line each.
        folder: Where all of it was read; ``None`` for a run that is made in memory.
    """

    name: str
    recipe: Row = field(default_factory=dict)
    recipe_text: str = ""
    environment: Row = field(default_factory=dict)
    metrics: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    summary: Row = field(default_factory=dict)
    checks: list[Row] = field(default_factory=list)
    diagnostics: list[Row] = field(default_factory=list)
    pareto: Row = field(default_factory=dict)
    samples: dict[str, list[Row]] = field(default_factory=dict)
    rollouts: dict[str, list[Row]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    folder: Path | None = None

    @property
    def tasks(self) -> list[str]:
        """Task names in the recipe's order and the summary's; from the metrics where neither has any."""
        listed = self.recipe.get("tasks")
        entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        names = [named(entry.get("name")) or named(entry.get("kind")) for entry in entries]
        names = [name for name in names if name] + list(self.summary_tasks)
        if not names:
            keys = dict.fromkeys(key for row in self.metrics for key in row)
            beginnings = (metric.REWARD_BY_TASK.prefix, held_out.NUMBER.prefix)
            names = [key.split("/")[1][:_LONGEST_NAME] for key in keys if key.startswith(beginnings)]
        return list(dict.fromkeys(names))[:_MOST_TASKS]

    @property
    def summary_tasks(self) -> dict[str, Row]:
        """Task name to its stages, as ``summary.json`` has them."""
        tasks = self.summary.get("tasks")
        rows = (
            {str(k)[:_LONGEST_NAME]: v for k, v in tasks.items() if isinstance(v, dict)}
            if isinstance(tasks, dict)
            else {}
        )
        return dict(list(rows.items())[:_MOST_TASKS])

    def setting(self, *path: str) -> Any:
        """Return a value of the recipe by its keys, from the outermost on; ``None`` where there is none."""
        node: Any = self.recipe
        for part in path:
            node = node.get(part) if isinstance(node, dict) else None
        return node

    def lines(self, stage: str) -> list[Row]:
        """Metric lines of one stage, in order of step."""
        return sorted((row for row in self.metrics if row.get("stage") == stage), key=step_of)


def read_run(folder: Path) -> Run:
    """Read all that a report needs from a run's folder.

    Raises:
        InputError: The folder is missing or holds no run.
    """
    if not folder.is_dir():
        raise InputError(NO_FOLDER(folder=folder))
    if not any((folder / name).is_file() for name in MARKS_OF_A_RUN):
        raise InputError(NO_RUN(folder=folder, files=", ".join(MARKS_OF_A_RUN)))
    run = Run(folder.resolve().name, folder=folder)
    run.recipe_text = _text(folder / (History(folder).newest or RECIPE), run.notes) or ""
    run.recipe = _yaml(run.recipe_text, run.notes)
    run.name = named(run.recipe.get("name")) or run.name
    run.environment = _mapping(folder / "environment.json", run.notes)
    run.summary = _mapping(folder / "summary.json", run.notes)
    run.metrics = _latest(_json_lines(folder / "metrics.jsonl", run.notes))
    run.events = _json_lines(folder / "events.jsonl", run.notes, needed=False)
    front = _json(folder / "pareto.json", run.notes, needed=False)
    run.pareto = front if isinstance(front, dict) else {}
    checks = _json(folder / "check.json", run.notes, needed=False)
    if isinstance(checks, dict):
        checks = checks.get("checks")
    run.checks = [entry for entry in checks if isinstance(entry, dict)] if isinstance(checks, list) else []
    diagnostics = _json(folder / "diagnostics.json", run.notes, needed=False)
    run.diagnostics = [row for row in diagnostics if isinstance(row, dict)] if isinstance(diagnostics, list) else []
    files = sorted((folder / "rollouts").glob("*.jsonl.gz"))
    if len(files) > _MOST_SAMPLED:
        run.notes.append(f"of {len(files)} files of rollouts the first and the last {_MOST_SAMPLED // 2} were read")
        files = files[: _MOST_SAMPLED // 2] + files[-_MOST_SAMPLED // 2 :]
    for file in files:
        name = file.name.removesuffix(".jsonl.gz")
        rows = _json_lines(file, run.notes)
        if name.startswith("eval-"):
            run.samples[name.removeprefix("eval-")] = rows
        else:
            run.rollouts[name] = rows
    return run


def step_of(row: Mapping[str, Any]) -> int:
    """Step of a line; 0 where it has none."""
    step = row.get("step")
    if not isinstance(step, int | float) or isinstance(step, bool) or not abs(step) < _MOST_STEPS:
        return 0
    return int(step)


def _latest(rows: list[Row]) -> list[Row]:
    last: dict[tuple[Any, ...], Row] = {}
    trained: Any = None
    for row in rows:
        # An evaluation carries the step of the stage that it interrupts.
        trained = trained if row.get("stage") == "eval" else row.get("stage")
        last[str(trained), str(row.get("stage")), step_of(row), str(row.get(held_out.EVAL_STAGE))] = row
    return list(last.values())


def named(value: Any) -> str:
    """A name from a file, for headings: a text or a number, of bounded length; empty for anything else."""
    return (
        str(value)[:_LONGEST_NAME] if isinstance(value, str) or (isinstance(value, int) and abs(value) < 10**18) else ""
    )


def _text(path: Path, notes: list[str], *, needed: bool = True) -> str | None:
    text = None
    with _noted(path, notes, needed):
        text = read_text(path)
    return text  # noqa: RET504 - still None where the file could not be read


@contextlib.contextmanager
def _noted(path: Path, notes: list[str], needed: bool) -> Iterator[None]:
    """Note what keeps a file from being read, and go on without it."""
    try:
        yield
    except FileNotFoundError:
        if needed:
            notes.append(f"{path.name} is missing")
    except (EOFError, zlib.error, gzip.BadGzipFile):
        notes.append(f"{path.name} is cut off; what could be read is shown")
    except InputError as error:
        notes.append(str(error).removeprefix(f"{path.parent}/"))
    except OSError as error:
        notes.append(f"{path.name} cannot be read ({error.strerror})")


def _yaml(text: str, notes: list[str]) -> Row:
    try:
        value = load_yaml(text)
    except DocumentError as error:
        notes.append(f"recipe.yaml is {error}")
        return {}
    return {str(key): inner for key, inner in value.items()} if isinstance(value, dict) else {}


def _json(path: Path, notes: list[str], *, needed: bool = True) -> Any:
    text = _text(path, notes, needed=needed)
    if text is None:
        return None
    try:
        return load_json(text)
    except DocumentError:
        notes.append(f"{path.name} is not valid JSON")
        return None


def _mapping(path: Path, notes: list[str]) -> Row:
    value = _json(path, notes)
    return value if isinstance(value, dict) else {}


def _json_lines(path: Path, notes: list[str], *, needed: bool = True) -> list[Row]:
    """Read JSON lines, plain or gzipped; broken lines are left out with a note, a broken last one as cut off."""
    rows: list[Row] = []
    broken: list[int] = []
    number = 0
    with _noted(path, notes, needed):
        for number, line in enumerate(read_lines(path, _LONGEST_LINE, _MOST), start=1):
            if not line.strip():
                continue
            try:
                value = load_json(line)
            except DocumentError:
                value = None
            if isinstance(value, dict):
                rows.append(value)
            else:
                broken.append(number)
    if broken == [number]:
        notes.append(f"the last line of {path.name} is incomplete and was left out")
    elif broken:
        notes.append(f"{path.name}: {len(broken)} unreadable lines were left out (first: line {broken[0]})")
    return rows
