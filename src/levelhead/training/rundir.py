"""A run on disk: plain files that are appended, flushed, and never half-written."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from levelhead import metrics as metric
from levelhead.documents import dump_json
from levelhead.documents.modes import open_to_readers
from levelhead.errors import InputError
from levelhead.recipe import Recipe
from levelhead.records import Event, Group, StepRecord
from levelhead.tasks.base import Task
from levelhead.terminal import say
from levelhead.training.lock import refuse_held

_LONGEST_ROW = 1 << 20
APPENDED = ("metrics.jsonl", "events.jsonl")


class RunDir:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def holds_run(self) -> bool:
        """Whether a run has been started here."""
        return any((self.path / name).exists() for name in ("recipe.yaml", "metrics.jsonl", "checkpoints"))

    def claim(self, *, resume: bool) -> None:
        """Make the folder, or refuse to touch another run.

        Raises:
            InputError: It holds a run and ``resume`` is off, or it cannot be made.
        """
        if not resume:
            _refuse_run(self.path)
        try:
            (self.path / "rollouts").mkdir(parents=True, exist_ok=True)
            (self.path / "checkpoints").mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be made: {error.strerror}") from None

    def write(self, name: str, content: str | bytes) -> None:
        """Write a small file whole or not at all."""
        target = self.path / name
        draft = target.with_name(f".{target.name}.tmp")
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        draft.replace(target)

    def write_json(self, name: str, value: Any) -> None:
        """Write a strict JSON document whole or not at all; a number that is not finite becomes text."""
        self.write(name, dump_json(value, indent=2) + "\n")

    def read_json(self, name: str) -> Any:
        """Read a JSON document; ``None`` where there is none."""
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def append(self, name: str, records: Iterable[StepRecord | Event]) -> None:
        """Append lines and flush them to the disk."""
        if lines := [dump_json(record.to_json()) + "\n" for record in records]:
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())

    def sizes(self) -> dict[str, int]:
        """Bytes of each appended file: where a resumed run cuts it off."""
        return {name: _size(self.path / name) for name in APPENDED}

    def steps(self, stage: str) -> Iterator[StepRecord]:
        """Read back the records of a stage, in order; seconds are left out.

        Raises:
            InputError: A line is damaged.
        """
        path = self.path / "metrics.jsonl"
        for number, row in _rows(path, _size(path)):
            try:
                if row["stage"] == stage:
                    values = {name: float(row[name]) for name in _timeless(row)}
                    yield StepRecord(int(row["step"]), row["stage"], values)
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{path}: line {number} is no record of a step ({type(error).__name__})") from None

    def last_row(self) -> str:
        """Return a hash of the newest row of metrics, seconds left out: it tells this run's records from others."""
        path = self.path / "metrics.jsonl"
        return _last_row(path, _size(path))

    def check(self, checkpoint: Path, sizes: Mapping[str, int], last_row: str) -> None:
        """See that the appended files hold what they held at a checkpoint, before anything is cut off.

        Args:
            checkpoint: Its folder, for messages.
            sizes: Bytes of each file.
            last_row: :meth:`last_row` at that moment; empty in older checkpoints.

        Raises:
            InputError: A file is missing, shorter, damaged, or another run's.
        """
        way_out = "bring it back, or go on from the start with --from start"
        for name in APPENDED:
            path, size = self.path / name, sizes.get(name, 0)
            if not size:
                continue
            if _size(path) < size:
                how = (
                    f"holds {_size(path)} of the {size} bytes"
                    if path.exists()
                    else f"is missing, and held {size} bytes"
                )
                raise InputError(f"{path}: {how} at {checkpoint.name}; {way_out}")
            with path.open("rb") as file:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    raise InputError(
                        f"{path}: no line ends where {checkpoint.name} left it, at byte {size}: the checkpoint or the "
                        f"file is another run's; {way_out}"
                    )
            for _ in _rows(path, size):
                pass
        path = self.path / "metrics.jsonl"
        if last_row and last_row != _last_row(path, sizes.get("metrics.jsonl", 0)):
            raise InputError(
                f"{path}: the row at which {checkpoint.name} was written is another one: the checkpoint or the file is "
                f"another run's; {way_out}"
            )

    def rewind(self, sizes: Mapping[str, int]) -> None:
        """Cut appended files back to what they held at a checkpoint; see :meth:`check`."""
        for name in APPENDED:
            path = self.path / name
            if path.exists():
                with path.open("r+b") as file:
                    file.truncate(min(sizes.get(name, 0), _size(path)))

    def save_rollouts(
        self,
        name: str,
        stage: str,
        step: int,
        groups: Sequence[Group],
        tasks: Mapping[str, Task],
        advantages: Sequence[Sequence[float]] | None = None,
    ) -> list[dict[str, Any]]:
        """Write a sample of rollouts as gzipped JSON lines.

        Args:
            name: Of the file, without its ending.
            stage: What they were sampled in.
            step: Its step.
            groups: The rollouts.
            tasks: By name; they tell the strata of a prompt.
            advantages: Of the rollouts of each group, where there are any.

        Returns:
            The rows that are written, one a rollout.
        """
        rows: list[dict[str, Any]] = []
        for i, group in enumerate(groups):
            strata = dict(tasks[group.prompt.task].strata(group.prompt)) if group.prompt.task in tasks else {}
            for j in range(len(group.rollouts)):
                row = _rollout(group, j, stage, step)
                if strata:
                    row["strata"] = strata
                if advantages is not None:
                    row["advantage"] = advantages[i][j]
                rows.append(row)
        lines = "\n".join(map(dump_json, rows)) + "\n"
        self.write(f"rollouts/{name}.jsonl.gz", gzip.compress(lines.encode(), mtime=0))
        return rows


def publish(draft: Path, target: Path, keep: Path | None = None) -> None:
    """Make a finished folder appear under its name, in place of what was there; its files follow the user's umask.

    Args:
        draft: The folder.
        target: Its name.
        keep: Where what was there is kept, unless something is kept there already; it is removed without it.
    """
    open_to_readers(draft)
    _sync(draft)
    old = _out_of_the_way(target)
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.replace(old if keep is None or keep.exists() else keep)
    draft.replace(target)
    shutil.rmtree(old, ignore_errors=True)  # also one that a process left which was killed between the two


def remove(folder: Path) -> None:
    """Remove a folder, whole or not at all as far as its name goes."""
    old = _out_of_the_way(folder)
    shutil.rmtree(old, ignore_errors=True)
    folder.replace(old)
    shutil.rmtree(old, ignore_errors=True)


def _out_of_the_way(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _rollout(group: Group, index: int, stage: str, step: int) -> dict[str, Any]:
    rollout = group.rollouts[index]
    score = rollout.score
    row = {
        "step": step,
        "stage": stage,
        "task": group.prompt.task,
        "prompt_id": group.prompt.id,
        "prompt": "\n\n".join(group.prompt.texts),
        "completion": "\n\n".join(rollout.text),
        "reward": rollout.reward,
        "parts": dict(rollout.parts),
        "valid": bool(score and score.valid),
        "length": rollout.length,
        "finish": rollout.turns[-1].finish if rollout.turns else "env",
        "policy_version": rollout.policy_version,
    }
    if len(rollout.turns) > 1:
        row["turns"] = [len(text) for text in rollout.text]
    if rollout.turn_rewards:
        row["turn_rewards"] = list(rollout.turn_rewards)
    if any(turn.versions for turn in rollout.turns):
        row["versions"] = [[list(stretch) for stretch in turn.versions] for turn in rollout.turns]
    if score is not None and score.info:
        row["info"] = dict(score.info)
    return row


def _rows(path: Path, size: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a file's first bytes, with the number of their lines.

    Raises:
        InputError: A line is no JSON object.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file.read(size).splitlines(), 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise InputError(f"{path}: line {number} is damaged: no JSON object")
            yield number, row


def _timeless(row: Mapping[str, Any]) -> list[str]:
    """Names of a row's numbers, those aside that a clock decides."""
    return [n for n in row if n not in ("step", "stage", metric.STEP_TIME) and not n.startswith(metric.TIME)]


def _last_row(path: Path, size: int) -> str:
    if not size or not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, size - _LONGEST_ROW))
        lines = file.read(min(size, _LONGEST_ROW)).splitlines()
    try:
        last = json.loads(lines[-1])
    except (ValueError, RecursionError):
        return ""
    if not isinstance(last, dict):
        return ""
    numbers = {name: last[name] for name in ("stage", "step", *_timeless(last))} if "step" in last else {}
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:16] if numbers else ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def refuse_used(folder: Path) -> None:
    """Refuse a folder that a new run cannot be written to, before any work is done.

    Raises:
        InputError: It is a file, holds a run, or another process runs there.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; choose a folder with --out")
    refuse_held(folder)
    _refuse_run(folder)


def _refuse_run(folder: Path) -> None:
    if RunDir(folder).holds_run:
        raise InputError(
            f"{folder}: already holds a run; continue it with --resume, or choose another folder with --out"
        )


def default_folder(recipe: Recipe) -> Path:
    """Return the folder of a recipe's first run: ``runs/NAME``."""
    return Path("runs") / recipe.name


def unused_folder(path: Path) -> Path:
    """Return the folder, or the first of those numbered from 2 on that holds no run, and say so."""
    for number in itertools.count(1):
        candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            refuse_used(candidate)
        except InputError:
            continue
        break
    if candidate != path:
        say(f"levelhead: {path} holds a run already; this one goes to {candidate}", error=True)
    return candidate
