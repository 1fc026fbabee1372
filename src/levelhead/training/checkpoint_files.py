"""The files of one checkpoint: where the run is (``state.json``), and the optimizer's state (``training.pt``)."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from levelhead.errors import InputError, first_line
from levelhead.policy.manifest import STATE, DamagedError, step_folders

TRAINING = "training.pt"
"""Name of the optimizer's state in a checkpoint."""
START = "start"
"""What stands for no checkpoint where one is named: the beginning of the run."""


@dataclass(slots=True)
class State:
    """Where a run is, apart from weights and optimizer.

    Attributes:
        stage: ``sft`` or ``grpo``.
        step: Steps done in that stage.
        done: Whether the stage is complete.
        fingerprint: Of the model; a checkpoint of another one is refused.
        sizes: Bytes of the appended files at this moment.
        last_row: Hash of the newest row of metrics at this moment; empty in older checkpoints.
        summary: Held-out results of the stages so far.
        best: Best evaluation of the run so far, its start included: mean over tasks of the balanced score, over the
            items that all evaluations share.
        best_name: Name that the best policy would have as a step checkpoint; empty in older checkpoints.
        seconds: Spent so far, over all sittings.
        stream: Position in the prompts.
        lost: Updates without a finite gradient, in a row.
        unevaluated: Whether the evaluation that follows this step is still to be made.
        recipe: File name of the recipe in force, in the run's folder.
        baselines: Answers that evaluations have seen, candidates of the best constant answer.
        digest: Hashes of what the next step begins with, by part.
        front: The Pareto front so far: objectives, reference, points, and the checkpoints that are kept of it.
    """

    stage: str
    step: int
    done: bool = False
    fingerprint: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    last_row: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    best: float | None = None
    best_name: str = ""
    seconds: float = 0.0
    stream: dict[str, Any] = field(default_factory=dict)
    lost: int = 0
    unevaluated: bool = False
    baselines: dict[str, Any] = field(default_factory=dict)
    recipe: str = "recipe.yaml"
    digest: dict[str, str] = field(default_factory=dict)
    front: dict[str, Any] = field(default_factory=dict)


def origin(state: State) -> str:
    """Return which policy a checkpoint holds, in words: ``the start of the run``, or the stage and its step."""
    return f"{state.stage}, step {state.step}" if state.step else "the start of the run"


def read_state(folder: Path) -> State:
    """Read the state that a checkpoint holds.

    Raises:
        InputError: The folder is no checkpoint.
    """
    path = folder / STATE
    try:
        values = dict(json.loads(path.read_text(encoding="utf-8")))
        values.pop("identities", None)  # of before ``training.pt`` held all that watchers go on with
        if values.pop("trainer", None):
            raise InputError(
                f"{path}: holds the trainer's state, as the first versions wrote it; begin again with --out"
            )
        state = State(**values)
        state.best = None if state.best is None else float(state.best)  # written as text where it is not finite
        return state
    except FileNotFoundError:
        if folder in step_folders(folder.parent):
            raise DamagedError(folder, STATE, "it is missing") from None
        raise InputError(f"{folder}: no checkpoint (it has no {STATE})") from None
    except (OSError, ValueError, TypeError) as error:
        raise DamagedError(folder, STATE, f"it cannot be read: {error}") from None


def baselines_of_run(checkpoint: Path) -> dict[str, Any]:
    """Return what the run of a checkpoint has seen of constant answers; empty where that cannot be read."""
    folders = step_folders(checkpoint.resolve().parent)
    try:
        return read_state(folders[-1] if folders else checkpoint).baselines
    except InputError:
        return {}


def write_training(folder: Path, state: Mapping[str, Any]) -> None:
    """Write the optimizer's state, as :func:`read_training` reads it, into a checkpoint's folder."""
    with (folder / TRAINING).open("wb") as file:
        torch.save(dict(state), file)


def read_training(folder: Path, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint's optimizer state.

    Raises:
        DamagedError: It is missing, or no optimizer state.
    """
    try:
        state: dict[str, Any] = torch.load(folder / TRAINING, map_location=device, weights_only=True)
        _ = state["optimizer"], state["updates"]
    except FileNotFoundError:
        raise DamagedError(folder, TRAINING, "it is missing") from None
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # which errors there are depends on where the file is cut off
        raise DamagedError(folder, TRAINING, f"it cannot be read: {first_line(error)}") from None
    return state


@contextlib.contextmanager
def offering_the_last_whole() -> Iterator[None]:
    """Say of a damaged checkpoint, inside, how the run goes on without it.

    Raises:
        InputError: In place of a :class:`DamagedError`.
    """
    try:
        yield
    except DamagedError as error:
        name = error.whole.name if error.whole else START
        what = "go on from it" if error.whole else "begin the run again"
        raise InputError(f"{error}; {what} with --resume --from {name}") from None


def _out_of_space(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, says that nothing more can be written."""
    while error is not None:
        number = getattr(error, "errno", None)
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or _NO_SPACE.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


_NO_SPACE = re.compile(r"No space left|File too large|os error (27|28|122)\b")
"""How libraries put it that raise no OSError."""


def _way_out(root: Path) -> str:
    """What a full disk has left: a run with a checkpoint goes on from it, one without begins again."""
    if steps := step_folders(root):
        return f"{steps[-1].name}, saved before, is whole: free some space and continue with --resume"
    return "no checkpoint had been saved before: free some space, and --resume begins the run again"


class full_disk:  # noqa: N801 - reads as a statement
    """Turns a full disk into an error that says what survives."""

    def __init__(self, draft: Path, what: str) -> None:
        self._draft, self._what = draft, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        shutil.rmtree(self._draft, ignore_errors=True)
        if _out_of_space(error):
            raise InputError(
                f"{self._draft.parent}: no space left while saving {self._what}; {_way_out(self._draft.parent)}"
            ) from None
