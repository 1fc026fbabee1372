"""Checkpoints: they appear whole or not at all, and a resumed run equals one that was left alone.

Where weights are divided over processes, all of them write one folder; the first one names, publishes and removes.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load_file, save_file
from torch import Tensor

from levelhead.documents import dump_json
from levelhead.errors import InputError
from levelhead.policy import manifest
from levelhead.policy.manifest import STATE, step_folders
from levelhead.policy.policy import Policy
from levelhead.training.checkpoint_files import START, State, full_disk, read_state, write_training
from levelhead.training.fidelity import saved_otherwise
from levelhead.training.ranks import Ranks
from levelhead.training.rundir import RunDir, publish, remove
from levelhead.training.sharding.shards import SHARDS, write_shards

REFERENCE = "reference"
BEST = "best"
FRONT = "front"
"""The folder of the checkpoints on the Pareto front."""
BEST_BEFORE = ".best.before"
"""The best policy of the newest step checkpoint, while ``best`` holds one of later steps."""
UNKNOWN = "step-unknown"
"""A name beyond those of all checkpoints."""

T = TypeVar("T")


class Checkpoints:
    """The ``checkpoints/`` folder of a run.

    Where processes share it, every method that writes is a collective.

    Args:
        run: The run's folder, that of the first process where they share it.
        keep_last: Step checkpoints kept.
        offset: Steps of the stages before, by stage, so that folder names grow over the whole run.
        ranks: The processes that share the folder; this one alone unless given.
        own: The folder of this process, where it shares another.

    Attributes:
        differing: Names of the weights that the newest checkpoint holds otherwise than memory.
    """

    def __init__(
        self,
        run: RunDir,
        keep_last: int,
        offset: Mapping[str, int],
        ranks: Ranks | None = None,
        own: Path | None = None,
    ) -> None:
        self._run = run
        self._root = run.path / "checkpoints"
        self._keep_last = keep_last
        self._offset = offset
        self._ranks = ranks or Ranks()
        self.differing: list[str] = []
        self._links = own / "checkpoints" if own is not None and self._ranks.rank else None

    def check_place(self) -> None:
        """Check that every process sees the folder.

        Raises:
            InputError: One does not.
        """
        here = self._root.parent.is_dir()
        blind = [rank for rank, sees in enumerate(self._ranks.gathered(here)) if not sees]
        if blind:
            raise InputError(
                f"{self._root.parent}: process {blind[0]} does not see this folder, and with distributed.shard: full "
                "all processes write its checkpoints; put --out on a file system that all machines share"
            )

    def _by_first(self, work: Callable[[], T]) -> T:
        """What the first process does alone, while the others wait; all get the result, or the error."""
        first: Any = self._ranks.agreed(lambda: None if self._ranks.rank else work())[0]
        result: T = first
        return result

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
        self._by_first(lambda: shutil.rmtree(self._root / BEST_BEFORE, ignore_errors=True))
        self.prune()
        return target

    def prune(self) -> None:
        """Drop the oldest step checkpoints, and what is left of one whose removal was cut short."""

        def drop() -> None:
            for old in self.steps()[: -self._keep_last]:
                shutil.rmtree(old, ignore_errors=True)

        self._by_first(drop)
        if self._links is not None:  # to a checkpoint that was gone on from
            shutil.rmtree(self._links, ignore_errors=True)

    def save_best(self, policy: Policy, state: State) -> None:
        """Write the weights of the best policy so far; the one before it stays until the next step checkpoint."""
        state.best_name = self._name(state)
        self._write(BEST, policy, state, None, keep=self._root / BEST_BEFORE)

    def save_front(self, policy: Policy, state: State) -> None:
        """Write the weights of a checkpoint on the Pareto front."""
        self._write(f"{FRONT}/{self._name(state)}", policy, state, None)

    def front_names(self) -> set[str]:
        """Return the names of the checkpoints of the Pareto front that are whole."""
        return self._by_first(lambda: {path.name for path in step_folders(self._root / FRONT)})

    def prune_front(self, members: Collection[str]) -> None:
        """Drop what is in the front's folder beside its members: dominated checkpoints, what a killed process left."""
        folder = self._root / FRONT

        def drop() -> None:
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.name not in members:
                    shutil.rmtree(path, ignore_errors=True)

        self._by_first(drop)

    def best_from_front(self, name: str) -> None:
        """Make a checkpoint of the front the best one, unless it is that already."""
        self._by_first(lambda: self._copy_to_best(name))

    def _copy_to_best(self, name: str) -> None:
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
        weights = policy.reference_weights()
        if weights is not None:  # a copy, which is written once
            self._by_first(lambda: self._write_reference(weights))

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
        """Folders of the step checkpoints, oldest first; damaged ones too."""
        return step_folders(self._root)

    def latest(self) -> Path | None:
        """Folder of the newest step checkpoint; ``None`` before there is one."""
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
        return self._by_first(lambda: self._set_aside(newest, asked=asked))

    def _set_aside(self, newest: Path | None, *, asked: bool) -> list[Path]:
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
        if state.best is None or self._ranks.gathered(self.has_best)[0]:
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
        draft = self._by_first(lambda: self._draft(name))
        with full_disk(draft, f"checkpoint {name}"):
            self._ranks.agreed(lambda: policy.save(draft))
            self.differing = [] if self._ranks.rank else saved_otherwise(policy, draft)
            rest = optimizer
            if optimizer is not None and not self._ranks.alone:
                rest = write_shards(draft / SHARDS, policy, optimizer)

            def finish() -> None:
                if rest is not None:
                    write_training(draft, rest)
                (draft / STATE).write_text(dump_json(asdict(state), indent=2), encoding="utf-8")
                manifest.write(draft)
                publish(draft, self._root / name, keep)

            self._by_first(finish)
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
