"""The part of a checkpoint that all processes write together, and that any number of processes reads.

A checkpoint's folder holds, besides what every checkpoint holds, ``shards/`` in the format of
``torch.distributed.checkpoint``: trained weights, the optimizer's moments and the guard's weights, of each process its
own pieces.  ``training.pt`` holds the rest.  Either kind of checkpoint is read by a run of either kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from levelhead.errors import first_line
from levelhead.objective.numerics import local
from levelhead.policy.manifest import DamagedError
from levelhead.policy.policy import Policy
from levelhead.policy.sharding import as_sharded, piece

SHARDS = "shards"
"""Folder of a checkpoint that all processes write."""
MODEL, OPTIMIZER, GUARD = "model", "optim", "guard"
"""First parts of the names of its tensors; the last is that of a parameter."""


def write_shards(folder: Path, policy: Policy, training: Mapping[str, Any]) -> dict[str, Any]:
    """Write the trained weights, the optimizer's moments and the guard's weights; returns the rest of the state.

    Args:
        folder: New; the same on all processes.
        policy: Whose weights.
        training: What :func:`~levelhead.training.checkpoint_files.write_training` writes of a run that is not divided.
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
        training: What :func:`~levelhead.training.checkpoint_files.read_training` gave.
        checkpoint: Its folder; all processes wrote it, or one.
        policy: Divided or not.

    Raises:
        DamagedError: The shards cannot be read, or do not fit the policy.
    """
    if (checkpoint / SHARDS).is_dir():
        return _read_shards(training, checkpoint, policy)
    if not policy.sharded:
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
        load(tensors, checkpoint_id=checkpoint / SHARDS, no_dist=not policy.sharded)
        for name, parameter in named.items():
            local(parameter).copy_(local(tensors[f"{MODEL}/{name}"]))
    except (CheckpointException, OSError, LookupError, ValueError, RuntimeError) as error:
        raise DamagedError(checkpoint, SHARDS, f"it cannot be read: {first_line(error)}") from None
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
