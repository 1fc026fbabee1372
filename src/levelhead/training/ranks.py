"""Data parallel: several processes, one run.

Every process takes every decision by itself, from the same numbers: prompts, seeds, groups, advantages, plan.  What
costs is divided: each samples and scores the groups of its own prompts, and runs forward and backward on its own
groups. Rollouts are gathered whole, so that no group straddles processes and no mean is a mean of means; gradients and
sums of metrics are added up before anything is made of them, so that merging sees each task's whole gradient.

Each process holds the whole policy, or a part of its weights (:mod:`levelhead.training.sharding`).  It waits for the
others up to a timeout; what keeps one of them from going on is raised in all.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import math
import os
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from levelhead.errors import EngineError, InputError, PeerError, PolicyError, RewardError
from levelhead.policy.packing import MicroBatch
from levelhead.policy.policy import Policy
from levelhead.records import Event
from levelhead.training import lock
from levelhead.training.lock import RunLock

T = TypeVar("T")

_LET_GO_S = 0.2
"""For gloo's threads to let go of the tensors of the last collective: one that does so once the interpreter has ended
aborts the process (PyTorch 2.13; 7 of 260 pairs of processes that ended right after a collective, none of 250 that
paused)."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of a run.

    Attributes:
        rank: From 0.
        count: Processes.
        device: Of this process, where the processes have one each.
    """

    rank: int = 0
    count: int = 1
    device: torch.device | None = None

    @classmethod
    def joined(cls, timeout_s: float = 600.0) -> Ranks:
        """Join the processes that a launcher (``torchrun``, ``accelerate launch``) has started; alone without one.

        Args:
            timeout_s: How long a process waits for the others, here and later.

        Raises:
            PeerError: They do not all come.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        device = None
        if torch.cuda.is_available():
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            backend = "gloo" if device is None else "cpu:gloo,cuda:nccl"
            with waiting_for_peers(timeout_s):
                dist.init_process_group(backend, timeout=dt.timedelta(seconds=timeout_s))
            atexit.register(time.sleep, _LET_GO_S)
        return cls(dist.get_rank(), dist.get_world_size(), device)

    def folder(self, path: Path, *, resume: bool = False) -> Path:
        """Where this process writes: the first to the run's folder, others beside it.

        With ``resume``, others begin with a copy of the first one's; its checkpoints are linked, not copied.
        """
        own = path.with_name(f"{path.name}.rank-{self.rank}") if self.rank else path
        if resume and self.rank and path.is_dir():
            shutil.rmtree(own, ignore_errors=True)
            shutil.copytree(path, own, ignore=shutil.ignore_patterns(lock.FILE, ".*.tmp"), copy_function=_copy)
        self.gathered(None)  # nobody writes before all have read
        return own

    def first_folder(self, own: Path) -> Path:
        """The folder of the first process, by this process's own."""
        return own.with_name(own.name.removesuffix(f".rank-{self.rank}")) if self.rank else own

    @property
    def alone(self) -> bool:
        """Whether there is only this process."""
        return self.count == 1

    def gathered(self, own: T) -> list[T]:
        """What every process has, in the order of their ranks."""
        if self.alone:
            return [own]
        parts: list[Any] = [None] * self.count
        cuda = self.device is not None and self.device.type == "cuda"
        # Any thread may ask, and each has a current device of its own.
        with torch.cuda.device(self.device) if cuda else contextlib.nullcontext():
            dist.all_gather_object(parts, own)
        return parts

    def add(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the processes, which is the same to the bit in each."""
        if not self.alone:
            dist.all_reduce(tensor)

    def agreed(self, work: Callable[[], T]) -> list[T]:
        """What a piece of work gives on every process; where it fails on one, it fails on all.

        Raises:
            Exception: This process's own, or the first other one's.
        """
        outcome: T | None = None
        failure: Exception | None = None
        try:
            outcome = work()
        except Exception as error:
            if self.alone:
                raise
            failure = error
        return self._all((outcome, failure))

    async def agreed_in_loop(self, work: Awaitable[T]) -> list[T]:
        """:meth:`agreed` for a coroutine, awaited in the event loop of each process."""
        outcome: T | None = None
        failure: Exception | None = None
        try:
            outcome = await work
        except Exception as error:  # told to the others, who would wait for what is not to come
            failure = error
        return self._all((outcome, failure))

    def in_all(self, work: Callable[[], T]) -> T:
        """What a piece of work gives here, once it has been done on every process; where it fails on one, as above."""
        result: list[T] = []
        self.agreed(lambda: result.append(work()))
        return result[0]

    def _all(self, own: tuple[Any, Exception | None]) -> list[Any]:
        outcomes = self.gathered((own[0], None if own[1] is None else _portable(own[1])))
        if own[1] is not None:
            raise own[1]
        for _, failure in outcomes:
            if failure is not None:
                raise failure
        return [outcome for outcome, _ in outcomes]

    def united(self, events: Sequence[Event]) -> list[Event]:
        """The events of all processes, those that several have once: what one has seen, the first one tells."""
        united: list[Event] = []
        for part in self.gathered(list(events)):
            united += [event for event in part if self.alone or event not in united]
        return united

    def any(self, here: bool) -> bool:
        """Whether something is so on any process."""
        return here if self.alone else any(self.gathered(here))

    def reduces(self, policy: Policy) -> Callable[[Tensor], None] | None:
        """:attr:`reduce` for gradients of a policy; nothing to do where its passes add them up themselves."""
        return None if policy.sharded else self.reduce

    @property
    def reduce(self) -> Callable[[Tensor], None] | None:
        """:meth:`add`, or nothing to do where there is only this process."""
        return None if self.alone else self.add

    def totals(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Sums of metrics over the processes; names that end in ``|max`` or ``|min`` are extremes."""
        if self.alone:
            return dict(sums)
        parts = self.gathered(dict(sums))
        names = dict.fromkeys(name for part in parts for name in part)
        columns = {name: [part[name] for part in parts if name in part] for name in names}
        ends = {name: max if name.endswith("|max") else min if name.endswith("|min") else math.fsum for name in names}
        return {name: ends[name](column) for name, column in columns.items()}

    def filled_up(self, micros: Sequence[MicroBatch], spare: MicroBatch) -> list[MicroBatch]:
        """Micro-batches with so many of a spare one behind them that every process has as many."""
        most = max(self.gathered(len(micros)))
        return [*micros, *[spare] * (most - len(micros))]


def lock_run(ranks: Ranks, path: Path, held: contextlib.ExitStack) -> list[Event]:
    """Lock a run's folder against other runs until ``held`` is left; of several processes, the first does.

    Returns:
        Events of the locking, as of a lock that a process left behind.

    Raises:
        InputError: Another run holds it; raised in every process.
    """
    refused, events = None, []
    if not ranks.rank:
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = RunLock(path)
            held.callback(lock.release)
            events = lock.events()
        except InputError as error:
            refused = str(error)
        except OSError as error:
            refused = f"{path}: cannot be made: {error.strerror}"
    if reasons := [reason for reason in ranks.gathered(refused) if reason]:
        raise InputError(reasons[0])
    return events


def _portable(error: Exception) -> Exception:
    """An error that can be sent to another process: of the same kind where that is an error of ours."""
    if isinstance(error, EngineError):
        return EngineError(str(error), error.cause)
    for kind in (InputError, RewardError, PolicyError):
        if isinstance(error, kind):
            return kind(str(error))
    return RuntimeError(f"another process failed: {type(error).__name__}: {error}")


def _copy(source: str, target: str) -> None:
    """Copy a file, or link one of a checkpoint: those are written once and never changed."""
    if "checkpoints" in Path(source).parts:
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)


@contextlib.contextmanager
def waiting_for_peers(timeout_s: float, count: int = 2) -> Iterator[None]:
    """Say in one line, of what fails inside for want of another process, that this is so.

    Args:
        timeout_s: How long it was waited for.
        count: Processes of the run; one waits for nobody.

    Raises:
        PeerError: In place of what the communication library raises.
    """
    try:
        yield
    except (dist.DistError, RuntimeError) as error:
        text = str(error)
        if count == 1 or not (isinstance(error, dist.DistError) or _LOST.search(text)):
            raise
        raise PeerError(
            f"another process has ended, or has not answered for {timeout_s:g} s (distributed.timeout_s); this one "
            "ends too. Look at the output of the first that ended, and continue with --resume"
        ) from error


_LOST = re.compile(r"\bgloo\b|pair closure|nccl|processgroup|tcpstore", re.IGNORECASE)
"""How the communication libraries put it, in errors that have no class of their own."""
