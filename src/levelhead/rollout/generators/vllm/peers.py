"""The processes of one run that share the servers: the first sends weights, and all know what came of it."""

from __future__ import annotations

from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")


def is_first() -> bool:
    """Whether this process is the one that sends weights."""
    return not _together() or dist.get_rank() == 0


def alone() -> bool:
    """Whether there is no other process."""
    return not _together()


def share(value: T) -> T:
    """Return the first process's value in every process; all must call it."""
    if not _together():
        return value
    box: list[T] = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def any_of(flag: bool) -> bool:
    """Whether something is so in any process; all must call it."""
    if not _together():
        return flag
    flags = [False] * dist.get_world_size()
    dist.all_gather_object(flags, flag)
    return any(flags)


def _together() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
