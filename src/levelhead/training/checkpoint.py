"""Checkpoints: they appear whole or not at all, and a resumed run equals one that was left alone."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from levelhead.documents import dump_json
from levelhead.errors import InputError
from levelhead.policy import manifest
from levelhead.policy.manifest import STATE, DamagedError, step_folders
from levelhead.policy.policy import Policy
from levelhead.training.full_disk import full_disk
from levelhead.training.rundir import RunDir, publish, remove

REFERENCE = "reference"
BEST = "best"
FRONT = "front"
"""The folder of the checkpoints on the Pareto front."""
BEST_BEFORE = ".best.before"
"""The best policy of the newest step checkpoint, while ``best`` holds one of later steps."""
TRAINING = "training.pt"
"""Name of the optimizer's state in a checkpoint."""
UNKNOWN = "step-unknown"
"""A name beyond those of all checkpoints."""
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
        trainer: State of the GRPO trainer, in checkpoints of before ``training.pt`` held it whole; else empty.
        lost: Updates without a finite gradient, in a row.
        unevaluated: Whether the evaluation that follows this step is still to be made.
        recipe: File name of the recipe in force, in the run's folder.
        baselines: Answers that evaluations have seen, candidates of the best constant answer.
        identities: What the checks of exact statements go on with.
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
    trainer: dict[str, Any] = field(default_factory=dict)
    lost: int = 0
    unevaluated: bool = False
    baselines: dict[str, Any] = field(default_factory=dict)
    recipe: str = "recipe.yaml"
    identities: dict[str, Any] = field(default_factory=dict)
    digest: dict[str, str] = field(default_factory=dict)
    front: dict[str, Any] = field(default_factory=dict)


def origin(state: State) -> str:
    """Return which policy a checkpoint holds, in words: ``the start of the run``, or the stage and its step."""
    return f"{state.stage}, step {state.step}" if state.step else "the start of the run"


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

    @property
    def run(self) -> Path:
        """The folder of the run that they belong to."""
        return self._run.path

    def save(self, policy: Policy, state: State, optimizer: Mapping[str, Any]) -> Path:
        """Write a checkpoint and drop the oldest.

        Raises:
            InputError: The disk is full; the checkpoints before are untouched.
        """
        target = self._write(self._name(state), policy, state, optimizer)
        shutil.rmtree(self._root / BEST_BEFORE, ignore_errors=True)
        self.prune()
        return target

    def prune(self) -> None:
        """Drop the oldest step checkpoints, and what is left of one whose removal was cut short."""
        for old in self.steps()[: -self._keep_last]:
            shutil.rmtree(old, ignore_errors=True)

    def save_best(self, policy: Policy, state: State) -> None:
        """Write the weights of the best policy so far; the one before it stays until the next step checkpoint."""
        state.best_name = self._name(state)
        self._write(BEST, policy, state, None, keep=self._root / BEST_BEFORE)

    def save_front(self, policy: Policy, state: State) -> None:
        """Write the weights of a checkpoint on the Pareto front."""
        self._write(f"{FRONT}/{self._name(state)}", policy, state, None)

    def front_names(self) -> set[str]:
        """Return the names of the checkpoints of the Pareto front that are whole."""
        return {path.name for path in step_folders(self._root / FRONT)}

    def prune_front(self, members: Collection[str]) -> None:
        """Drop what is in the front's folder beside its members: dominated checkpoints, what a killed process left."""
        folder = self._root / FRONT
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name not in members:
                shutil.rmtree(path, ignore_errors=True)

    def best_from_front(self, name: str) -> None:
        """Make a checkpoint of the front the best one, unless it is that already."""
        best = self._root / BEST
        if self.has_best and self._best_name(best) == name:
            return
        draft = self._draft(BEST)
        with full_disk(draft, f"checkpoint {BEST}"):
            shutil.copytree(self._root / FRONT / name, draft, dirs_exist_ok=True)
            publish(draft, best, self._root / BEST_BEFORE)

    def begin_reference(self, policy: Policy, *, resumed: bool, trained: bool) -> None:
        """Freeze the reference of a stage that begins, or restore that of one that goes on.

        Args:
            policy: Whose reference it is.
            resumed: Whether the stage goes on.
            trained: Whether the policy has been trained before it.

        Raises:
            InputError: The reference of an interrupted run is missing or damaged.
        """
        if resumed:
            self.load_reference(policy)
            return
        policy.keep_reference(trained=trained)
        self.save_reference(policy)

    def save_reference(self, policy: Policy) -> None:
        """Write a reference that is a copy of weights, once."""
        weights = policy.reference_weights()
        if weights is not None:
            self._write_reference(weights)

    def _write_reference(self, weights: Mapping[str, Tensor]) -> None:
        draft = self._draft(REFERENCE)
        with full_disk(draft, "the reference policy"):
            save_file({k: v.contiguous().clone() for k, v in weights.items()}, draft / "model.safetensors")
            manifest.write(draft)
            publish(draft, self._root / REFERENCE)

    def load_reference(self, policy: Policy) -> None:
        """Restore the reference of an interrupted run.

        Raises:
            InputError: It is missing or damaged.
        """
        path = self._root / REFERENCE / "model.safetensors"
        if policy.lora:
            policy.resume_reference()
        elif path.is_file():
            manifest.check(path.parent)
            policy.load_reference_weights(load_file(path, device=str(policy.device)))
        else:
            raise InputError(f"{path}: missing; the reference of this run is lost, start it anew")

    def steps(self) -> list[Path]:
        """Step checkpoints, oldest first."""
        return step_folders(self._root)

    def latest(self) -> Path | None:
        """The newest checkpoint."""
        steps = self.steps()
        return steps[-1] if steps else None

    def named(self, name: str) -> Path | None:
        """Return the checkpoint of a name (``step-000100``), or ``None`` for ``start``, the beginning of the run.

        Raises:
            InputError: There is none of that name.
        """
        if name == START:
            return None
        steps = {path.name: path for path in self.steps()}
        if name not in steps:
            have = ", ".join([*steps, START])
            raise InputError(f"{self._root}: no checkpoint {name!r} to go on from; there are: {have}")
        return steps[name]

    @property
    def has_best(self) -> bool:
        """Whether a best policy is kept."""
        return (self._root / BEST).is_dir()

    def set_aside(self, newest: Path | None, *, asked: bool) -> list[Path]:
        """Rename the checkpoints, ``best`` among them, that are newer than one: the run does not go on from them.

        Where a process ended between a new best policy and the next step checkpoint, the run comes by that policy
        again: it is removed, and the one before it is the best.

        Args:
            newest: The checkpoint that the run goes on from; ``None`` for the start.
            asked: Whether that checkpoint was asked for by name.

        Returns:
            The new names.
        """
        newer = [path for path in self.steps() if newest is None or path.name > newest.name]
        best, before = self._root / BEST, self._root / BEST_BEFORE
        if self.has_best and (newest is None or self._best_name(best) > newest.name):
            if asked or newer or self._best_name(best) == UNKNOWN:
                newer.append(best)
            else:
                remove(best)
        aside = self._renamed(newer)
        if not self.has_best and before.is_dir() and newest is not None and self._best_name(before) <= newest.name:
            before.replace(best)
        for left in (before, self._root / f".{BEST}.old"):
            shutil.rmtree(left, ignore_errors=True)
        return aside

    def _agreed(self, here: bool) -> bool:
        """What all processes that share the folder take for true; here there is one."""
        return here

    def _renamed(self, newer: Iterable[Path]) -> list[Path]:
        aside: list[Path] = []
        for path in newer:
            target = self._root / f"aside-{path.name}"
            for number in itertools.count(2):
                if not target.exists():
                    break
                target = self._root / f"aside-{path.name}-{number}"
            aside.append(path.replace(target))
        return aside

    def _name(self, state: State) -> str:
        return f"step-{self._offset[state.stage] + state.step:06d}"

    def _best_name(self, best: Path) -> str:
        """The name that a best policy would have as a step checkpoint; :data:`UNKNOWN` where it cannot be told."""
        try:
            return self._name(read_state(best))
        except (InputError, LookupError):
            return UNKNOWN

    def best_origin(self) -> dict[str, Any]:
        """Return stage (``start``, ``sft``, ``grpo``) and step of the policy that is kept as the best; else nothing."""
        if not self.has_best:
            return {}
        state = read_state(self._root / BEST)
        return {"stage": state.stage if state.step else "start", "step": state.step}

    def find_best(self, policy: Policy, state: State) -> None:
        """Where the best policy was set aside, as one of later steps, save this one if it was the best before them.

        If it was not, that one is no longer on disk, and its score is forgotten: the next to be scored is the best.

        Args:
            policy: With the weights of the checkpoint that the run goes on from.
            state: Of that checkpoint.
        """
        if state.best is None or self._agreed(self.has_best):
            return
        if state.best_name == self._name(state):
            self.save_best(policy, state)
        else:
            state.best = None

    def _write(
        self,
        name: str,
        policy: Policy,
        state: State,
        optimizer: Mapping[str, Any] | None,
        keep: Path | None = None,
    ) -> Path:
        draft = self._draft(name)
        with full_disk(draft, f"checkpoint {name}"):
            policy.save(draft)
            if optimizer is not None:
                write_training(draft, optimizer)
            (draft / STATE).write_text(dump_json(asdict(state), indent=2), encoding="utf-8")
            manifest.write(draft)
            publish(draft, self._root / name, keep)
        return self._root / name

    def _draft(self, name: str) -> Path:
        target = self._root / name
        draft = target.with_name(f".{target.name}.tmp")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        return draft


def newest_checkpoint(folder: RunDir) -> Path | None:
    """The checkpoint that a resumed run goes on from."""
    return Checkpoints(folder, 1, {}).latest()


def read_state(folder: Path) -> State:
    """Read a checkpoint's state.

    Raises:
        InputError: The folder is no checkpoint.
    """
    path = folder / STATE
    try:
        state = State(**json.loads(path.read_text(encoding="utf-8")))
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
    """Write what :func:`read_training` reads."""
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
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DamagedError(folder, TRAINING, f"it cannot be read: {reason}") from None
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
