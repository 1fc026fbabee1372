"""Checkpoints: they appear whole or not at all, and a resumed run equals one that was left alone."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from levelhead.errors import InputError
from levelhead.policy.policy import Policy
from levelhead.training.rundir import RunDir, publish

REFERENCE = "reference"
BEST = "best"


@dataclass(slots=True)
class State:
    """Where a run is, apart from weights and optimizer.

    Attributes:
        stage: ``sft`` or ``grpo``.
        step: Steps done in that stage.
        done: Whether the stage is complete.
        fingerprint: Of the model; a checkpoint of another one is refused.
        sizes: Bytes of the appended files at this moment.
        summary: Held-out results of the stages so far.
        best: Best evaluation so far: mean over tasks of the balanced score, over the items that all evaluations share.
        seconds: Spent so far, over all sittings.
        stream: Position in the prompts.
        trainer: Coefficients and running statistics of the reinforcement stage.
        lost: Updates without a finite gradient, in a row.
        unevaluated: Whether the evaluation that follows this step is still to be made.
        baselines: Answers that evaluations have seen, candidates of the best constant answer.
    """

    stage: str
    step: int
    done: bool = False
    fingerprint: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    best: float | None = None
    seconds: float = 0.0
    stream: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    lost: int = 0
    unevaluated: bool = False
    baselines: dict[str, Any] = field(default_factory=dict)


class Checkpoints:
    """The ``checkpoints/`` folder of a run.

    Args:
        run: The run's folder.
        keep_last: Step checkpoints kept.
        offset: Steps of the stages before, by stage, so that folder names grow over the whole run.
    """

    def __init__(self, run: RunDir, keep_last: int, offset: Mapping[str, int]) -> None:
        self._run = run
        self._root = run.path / "checkpoints"
        self._keep_last = keep_last
        self._offset = offset

    def save(self, policy: Policy, state: State, optimizer: Mapping[str, Any]) -> Path:
        """Write a checkpoint and drop the oldest.

        Raises:
            InputError: The disk is full; the checkpoints before are untouched.
        """
        name = f"step-{self._offset[state.stage] + state.step:06d}"
        target = self._write(name, policy, state, optimizer)
        steps = self.steps()
        for old in steps[: -self._keep_last]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def save_best(self, policy: Policy, state: State) -> None:
        """Write the weights of the best policy so far."""
        self._write(BEST, policy, state, None)

    def save_reference(self, policy: Policy) -> None:
        """Write a reference that is a copy of weights, once."""
        weights = policy.reference_weights()
        if weights is not None:
            draft = self._draft(REFERENCE)
            with _full_disk(draft, "the reference policy"):
                save_file({k: v.contiguous().clone() for k, v in weights.items()}, draft / "model.safetensors")
                publish(draft, self._root / REFERENCE)

    def load_reference(self, policy: Policy) -> None:
        """Restore the reference of an interrupted run."""
        path = self._root / REFERENCE / "model.safetensors"
        if policy.lora:
            policy.resume_reference()
        elif path.is_file():
            policy.load_reference_weights(load_file(path, device=str(policy.device)))
        else:
            raise InputError(f"{path}: missing; the reference of this run is lost, start it anew")

    def steps(self) -> list[Path]:
        """Complete step checkpoints, oldest first."""
        return step_folders(self._root)

    def latest(self) -> Path | None:
        """The newest complete checkpoint."""
        steps = self.steps()
        return steps[-1] if steps else None

    def _write(self, name: str, policy: Policy, state: State, optimizer: Mapping[str, Any] | None) -> Path:
        draft = self._draft(name)
        with _full_disk(draft, f"checkpoint {name}"):
            policy.save(draft)
            if optimizer is not None:
                with (draft / "training.pt").open("wb") as file:
                    torch.save(dict(optimizer), file)
            (draft / "state.json").write_text(json.dumps(asdict(state), indent=2), encoding="utf-8")
            publish(draft, self._root / name)
        return self._root / name

    def _draft(self, name: str) -> Path:
        draft = self._root / f".{name}.tmp"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        return draft


def step_folders(root: Path) -> list[Path]:
    """Complete step checkpoints in a folder, oldest first; none where there is no folder."""
    found = root.glob("step-*") if root.is_dir() else ()
    return sorted(path for path in found if (path / "state.json").is_file())


def read_state(folder: Path) -> State:
    """Read a checkpoint's state.

    Raises:
        InputError: The folder is no checkpoint.
    """
    path = folder / "state.json"
    try:
        return State(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise InputError(f"{folder}: no checkpoint (it has no state.json)") from None
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def read_training(folder: Path, device: torch.device) -> dict[str, Any]:
    """Read a checkpoint's optimizer state."""
    state: dict[str, Any] = torch.load(folder / "training.pt", map_location=device, weights_only=True)
    return state


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


class _full_disk:  # noqa: N801 - reads as a statement
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
