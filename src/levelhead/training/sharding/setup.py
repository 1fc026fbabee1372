"""From what a recipe prepared to what the processes of a run share: the policy is divided here, and nowhere else.

So are calls, episodes, budgets and files of replies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from levelhead.errors import InputError
from levelhead.message import Message
from levelhead.policy.device import resolve_device
from levelhead.policy.load import Load
from levelhead.policy.sharding import Reference, shard_policy
from levelhead.recipe import Recipe
from levelhead.recipe.endpoint import Endpoint
from levelhead.recipe.generator import Local, Vllm
from levelhead.records import Event
from levelhead.training.checkpoint import Checkpoints
from levelhead.training.prepare import Setup, make_objective
from levelhead.training.ranks import Ranks
from levelhead.training.rundir import RunDir


def shared_setup(setup: Setup, ranks: Ranks) -> Setup:
    """Divide the policy over the processes where the recipe says so; otherwise everything stays as it is.

    Raises:
        InputError: The recipe asks for what several processes cannot do.
    """
    if not divides(setup.recipe, ranks):
        return setup
    check_divisible(setup.recipe)
    samples = samples_here(setup.recipe)
    device = resolve_device(setup.recipe.model.device)
    policy = shard_policy(setup.policy, reference=_reference(setup), samples=samples, device=device)
    return replace(setup, policy=policy)


def loading(recipe: Recipe, ranks: Ranks, *, checks: bool) -> Load:
    """How this process loads the policy: where nobody needs it whole, the first process alone, and hands it out.

    Args:
        recipe: Of the run.
        ranks: The processes.
        checks: Whether it is for the preflight, which the first process then makes alone, on its device.
    """
    if not divides(recipe, ranks) or samples_here(recipe):
        return "whole"
    return "shape" if ranks.rank else "whole" if checks else "host"


def servers(recipe: Recipe, ranks: Ranks) -> Local | Vllm:
    """A recipe's generator as one process of several uses it: with its share of the requests under way."""
    section = recipe.generator
    if isinstance(section, Local) or ranks.alone:
        return section
    return section.model_copy(update={"concurrency": max(section.concurrency // ranks.count, 1)})


def samples_here(recipe: Recipe) -> bool:
    """Whether the processes of a run sample completions themselves."""
    return recipe.generator.kind == "local"


def divides(recipe: Recipe, ranks: Ranks) -> bool:
    """Whether the weights of a run are divided over its processes."""
    return recipe.distributed.shard == "full" and not ranks.alone


def check_divisible(recipe: Recipe) -> None:
    """Check that nothing of a recipe needs whole weights in every process.

    Raises:
        InputError: Something does.
    """
    for stage, section in (("sft", recipe.sft), ("grpo", recipe.grpo)):
        if section is not None and section.optimizer.kind != "adamw":
            raise InputError(
                f"{stage}.optimizer.kind: {section.optimizer.kind} needs whole weights, which distributed.shard: full "
                "divides; use adamw, or distributed.shard: none"
            )


def _reference(setup: Setup) -> Reference:
    recipe = setup.recipe
    if recipe.grpo is None or not make_objective(recipe, recipe.grpo)[0].coefficients.needs_reference:
        return "none"
    if not setup.policy.lora:
        return "copy"
    return "adapter" if recipe.sft is not None or setup.policy.starts_trained else "base"


def make_checkpoints(folder: RunDir, recipe: Recipe, offset: Mapping[str, int], ranks: Ranks) -> Checkpoints:
    """Return the checkpoints of a run: of each process, or one folder for all where weights are divided.

    Raises:
        InputError: They are divided, and a process does not see the folder that all write to.
    """
    keep_last = recipe.checkpoint.keep_last
    if not divides(recipe, ranks):
        return Checkpoints(folder, keep_last, offset)
    shared = Checkpoints(RunDir(ranks.first_folder(folder.path)), keep_last, offset, ranks, folder.path)
    shared.check_place()
    return shared


CACHE_PLACE = "cache-on-network"
"""Code of the event that a file of replies lies on a network file system."""
ON_NETWORK = Message(
    "tasks.{index}.{key}.cache: {cache} lies on a network file system ({kind}), where SQLite's locks do not hold: "
    "processes on other machines may damage it; put it on a local disk of each machine",
    "tasks.{index}.{key}.cache：{cache} 位于网络文件系统（{kind}）上，SQLite 的锁在那里不起作用，"
    "其他机器上的进程可能损坏它；请放到每台机器的本地磁盘",
)

_ENDPOINTS = ("judge", "executor")
"""Keys of a task that hold an endpoint."""
_EPISODES = ("pages", "sessions")
"""Keys of a task that bound the episodes under way at once."""
_BUDGETS = ("max_calls", "max_total_tokens")


def divided(recipe: Recipe, ranks: Ranks) -> Recipe:
    """Return the recipe as one process of several carries it out: with its share of calls, episodes and budgets.

    Shares are rounded down, and are 1 at least; together the processes stay within the recipe's own numbers where
    these are not smaller than the number of processes.
    """
    if ranks.alone:
        return recipe
    return recipe.model_copy(update={"tasks": [_share(section, ranks.count) for section in recipe.tasks]})


def check_same(ranks: Ranks, checkpoint: Path | None) -> None:
    """Check that all processes go on from the same checkpoint.

    Raises:
        InputError: They do not, as where each machine has a folder of its own and one is behind.
    """
    names = ranks.gathered(None if checkpoint is None else checkpoint.name)
    if len(set(names)) > 1:
        listed = ", ".join(f"process {rank} from {name or 'the start'}" for rank, name in enumerate(names))
        raise InputError(f"--resume: processes would go on from different checkpoints: {listed}; name one by --from")


def _share(section: Any, count: int) -> Any:
    changes: dict[str, Any] = {}
    for key in _EPISODES:
        if isinstance(value := getattr(section, key, None), int):
            changes[key] = max(value // count, 1)
    for key in _ENDPOINTS:
        endpoint = getattr(section, key, None)
        if isinstance(endpoint, Endpoint):
            changes[key] = endpoint.model_copy(update=_endpoint_share(endpoint, count))
    return section.model_copy(update=changes) if changes else section


def _endpoint_share(endpoint: Endpoint, count: int) -> Mapping[str, int]:
    budgets = {key: value for key in _BUDGETS if (value := getattr(endpoint, key)) is not None}
    return {key: max(value // count, 1) for key, value in {"concurrency": endpoint.concurrency, **budgets}.items()}


NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs")
"""Types of file systems on which several machines may write; one that runs in user space has ``fuse.`` in front."""
_LOCAL_FUSE = ("fuseblk", "fuse.fuse-overlayfs")


def network_file_system(path: str | Path, mounts: Iterable[str] | None = None) -> str | None:
    """Return the type of the network file system that a path lies on; ``None`` where it is local or cannot be told.

    Args:
        path: It need not exist yet.
        mounts: Lines of ``/proc/mounts``; the machine's own unless given.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return None
    place = os.path.realpath(Path(path).expanduser())
    best, kind = "", ""
    for line in mounts:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ").rstrip("/")
        if (place == point or place.startswith(f"{point}/")) and len(point) >= len(best):
            best, kind = point, fields[2]
    remote = kind in NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)
    return kind if remote else None


def cache_events(recipe: Recipe, kind_of: Callable[[str], str | None] = network_file_system) -> Iterator[Event]:
    """Warn of files of replies on a network file system.

    Args:
        recipe: Whose endpoints.
        kind_of: Type of the network file system that a path lies on.
    """
    for index, section in enumerate(recipe.tasks):
        for key in _ENDPOINTS:
            endpoint = getattr(section, key, None)
            cache = endpoint.cache if isinstance(endpoint, Endpoint) else None
            if cache is not None and (kind := kind_of(cache)) is not None:
                text = ON_NETWORK(index=index, key=key, cache=cache, kind=kind)
                yield Event(0, CACHE_PLACE, "warning", text, None, {"path": cache, "file_system": kind})
