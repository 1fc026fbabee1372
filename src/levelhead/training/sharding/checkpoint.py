"""Checkpoints that all processes write together, and that any number of processes reads.

A checkpoint's folder holds, besides what every checkpoint holds, ``shards/`` in the format of
``torch.distributed.checkpoint``: trained weights, the optimizer's moments and the guard's weights, of each process its
own pieces.  ``training.pt`` holds the rest.  Either kind of checkpoint is read by a run of either kind.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from levelhead.documents import dump_json
from levelhead.errors import InputError
from levelhead.objective.numerics import local
from levelhead.policy import manifest
from levelhead.policy.manifest import STATE, DamagedError
from levelhead.policy.policy import Policy
from levelhead.policy.sharding import as_sharded, piece
from levelhead.recipe import Recipe
from levelhead.training.checkpoint import BEST_BEFORE, Checkpoints, State, write_training
from levelhead.training.full_disk import full_disk
from levelhead.training.ranks import Ranks
from levelhead.training.rundir import RunDir, publish
from levelhead.training.sharding.setup import divides

SHARDS = "shards"
"""Folder of a checkpoint that all processes write."""
MODEL, OPTIMIZER, GUARD = "model", "optim", "guard"
"""First parts of the names of its tensors; the last is that of a parameter."""

T = TypeVar("T")


class SharedCheckpoints(Checkpoints):
    """The ``checkpoints/`` folder of a run whose weights are divided: one folder for all processes.

    Every method that writes is a collective; the first process names, publishes and removes.

    Args:
        run: The run's folder, that of the first process.
        keep_last: See :class:`Checkpoints`.
        offset: See :class:`Checkpoints`.
        ranks: The processes.
        own: The folder of this process.
    """

    def __init__(self, run: RunDir, keep_last: int, offset: Mapping[str, int], ranks: Ranks, own: Path) -> None:
        super().__init__(run, keep_last, offset)
        self._ranks = ranks
        self._links = own / "checkpoints" if ranks.rank else None

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

    def save(self, policy: Policy, state: State, optimizer: Mapping[str, Any]) -> Path:
        """See :meth:`Checkpoints.save`."""
        target = self._write(self._name(state), policy, state, optimizer)
        self._by_first(lambda: shutil.rmtree(self._root / BEST_BEFORE, ignore_errors=True))
        self.prune()
        return target

    def prune(self) -> None:
        """See :meth:`Checkpoints.prune`; the others' links to a checkpoint that was gone on from go too."""
        self._by_first(super().prune)
        if self._links is not None:
            shutil.rmtree(self._links, ignore_errors=True)

    def front_names(self) -> set[str]:
        """See :meth:`Checkpoints.front_names`."""
        return self._by_first(super().front_names)

    def prune_front(self, members: Collection[str]) -> None:
        """See :meth:`Checkpoints.prune_front`."""
        self._by_first(lambda: Checkpoints.prune_front(self, members))

    def best_from_front(self, name: str) -> None:
        """See :meth:`Checkpoints.best_from_front`."""
        self._by_first(lambda: Checkpoints.best_from_front(self, name))

    def save_reference(self, policy: Policy) -> None:
        """See :meth:`Checkpoints.save_reference`."""
        weights = policy.reference_weights()
        if weights is not None:
            self._by_first(lambda: self._write_reference(weights))

    def set_aside(self, newest: Path | None, *, asked: bool) -> list[Path]:
        """See :meth:`Checkpoints.set_aside`."""
        return self._by_first(lambda: Checkpoints.set_aside(self, newest, asked=asked))

    def _by_first(self, work: Callable[[], T]) -> T:
        """What the first process does alone, while the others wait; all get the result, or the error."""
        first: Any = self._ranks.agreed(lambda: None if self._ranks.rank else work())[0]
        result: T = first
        return result

    def _agreed(self, here: bool) -> bool:
        return self._ranks.gathered(here)[0]

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
            rest = None if optimizer is None else write_shards(draft / SHARDS, policy, optimizer)

            def finish() -> None:
                if rest is not None:
                    write_training(draft, rest)
                (draft / STATE).write_text(dump_json(asdict(state), indent=2), encoding="utf-8")
                manifest.write(draft)
                publish(draft, self._root / name, keep)

            self._by_first(finish)
        return self._root / name


def make_checkpoints(folder: RunDir, recipe: Recipe, offset: Mapping[str, int], ranks: Ranks) -> Checkpoints:
    """Return the checkpoints of a run: of each process, or one for all where weights are divided.

    Raises:
        InputError: They are divided, and a process does not see the folder that all write to.
    """
    if not divides(recipe, ranks):
        return Checkpoints(folder, recipe.checkpoint.keep_last, offset)
    first = RunDir(ranks.first_folder(folder.path))
    shared = SharedCheckpoints(first, recipe.checkpoint.keep_last, offset, ranks, folder.path)
    shared.check_place()
    return shared


def write_shards(folder: Path, policy: Policy, training: Mapping[str, Any]) -> dict[str, Any]:
    """Write the trained weights, the optimizer's moments and the guard's weights; returns the rest of the state.

    Args:
        folder: New; the same on all processes.
        policy: Whose weights.
        training: What :func:`~levelhead.training.checkpoint.write_training` writes of a run that is not divided.
    """
    named = _trained(policy)
    tensors: dict[str, Any] = {f"{MODEL}/{name}": parameter.detach() for name, parameter in named}
    optimizer = training["optimizer"]
    for index, state in optimizer["state"].items():
        tensors |= {f"{OPTIMIZER}/{key}/{named[int(index)][0]}": value for key, value in state.items()}
    for (name, parameter), weight in zip(named, snapshot(training), strict=False):
        tensors[f"{GUARD}/{name}"] = as_sharded(weight, parameter)
    save(tensors, checkpoint_id=folder, no_dist=not dist.is_initialized())
    return {**_with_snapshot(training, []), "optimizer": {**optimizer, "state": {}}}


def snapshot(training: Mapping[str, Any]) -> Sequence[Tensor]:
    """Return the weights that the guard can go back to, in the order of the trained weights; empty without a guard."""
    region = training.get("trainer", {}).get("trust_region", {})
    weights: Sequence[Tensor] = region.get("weights", training.get("guard", ()))
    return weights


def _with_snapshot(training: Mapping[str, Any], weights: Sequence[Tensor]) -> dict[str, Any]:
    trainer = training.get("trainer", {})
    if "trust_region" in trainer:
        region = {**trainer["trust_region"], "weights": weights}
        return {**training, "trainer": {**trainer, "trust_region": region}}
    return {**training, **({"guard": weights} if weights or "guard" in training else {})}


def with_shards(training: Mapping[str, Any], checkpoint: Path, policy: Policy) -> dict[str, Any]:
    """Return the training state of a checkpoint as the processes of this run hold it, and restore the weights.

    Args:
        training: What :func:`~levelhead.training.checkpoint.read_training` gave.
        checkpoint: Its folder; all processes wrote it, or one.
        policy: Divided or not.

    Raises:
        DamagedError: The shards cannot be read, or do not fit the policy.
    """
    if (checkpoint / SHARDS).is_dir():
        return _read_shards(training, checkpoint, policy)
    if policy.total is None:
        return dict(training)
    parameters = [parameter for _, parameter in _trained(policy)]
    optimizer = training["optimizer"]
    state = {
        index: {key: _divided(value, parameters[int(index)]) for key, value in values.items()}
        for index, values in optimizer["state"].items()
    }
    guard = [piece(weight, like).clone() for weight, like in zip(snapshot(training), parameters, strict=False)]
    return {**_with_snapshot(training, guard), "optimizer": {**optimizer, "state": state}}


def _divided(value: Any, like: Tensor) -> Any:
    if not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    return as_sharded(piece(value, like).clone(), like)


@torch.no_grad()
def _read_shards(training: Mapping[str, Any], checkpoint: Path, policy: Policy) -> dict[str, Any]:
    named = dict(_trained(policy))
    try:
        tensors = _templates(checkpoint / SHARDS, named)
        load(tensors, checkpoint_id=checkpoint / SHARDS, no_dist=policy.total is None)
        for name, parameter in named.items():
            local(parameter).copy_(local(tensors[f"{MODEL}/{name}"]))
    except (CheckpointException, OSError, LookupError, ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DamagedError(checkpoint, SHARDS, f"it cannot be read: {reason}") from None
    state: dict[int, dict[str, Tensor]] = {}
    for index, name in enumerate(named):
        suffix = f"/{name}"
        moments = {
            key.removeprefix(f"{OPTIMIZER}/").removesuffix(suffix): value
            for key, value in tensors.items()
            if key.startswith(f"{OPTIMIZER}/") and key.split("/", 2)[2] == name
        }
        if moments:
            state[index] = moments
    guard = [local(tensors[key]) for name in named if (key := f"{GUARD}/{name}") in tensors]
    optimizer = {**training["optimizer"], "state": state}
    return {**_with_snapshot(training, guard), "optimizer": optimizer}


def _templates(folder: Path, named: Mapping[str, Tensor]) -> dict[str, Any]:
    """Empty tensors for all that a folder holds, divided as the parameters are."""
    saved = FileSystemReader(folder).read_metadata().state_dict_metadata
    templates: dict[str, Any] = {}
    for key, entry in saved.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise ValueError(f"{key} is no tensor")
        like = named[key.rpartition("/")[2]]
        if entry.size == like.shape:
            templates[key] = torch.empty_like(like.detach(), dtype=entry.properties.dtype)
        else:
            templates[key] = torch.empty(entry.size, dtype=entry.properties.dtype)
    return templates


def _trained(policy: Policy) -> list[tuple[str, Tensor]]:
    return [(name, parameter) for name, parameter in policy.model.named_parameters() if parameter.requires_grad]
