"""Data parallel: several processes, one run.

Every process holds the whole policy and takes every decision by itself, from the same numbers: prompts, seeds, groups,
advantages, plan.  What costs is divided: each draws and scores the groups of its own prompts, and runs forward and
backward on its own groups.  Rollouts are gathered whole, so that no group straddles processes and no mean is a mean of
means; gradients and sums of metrics are added up before anything is made of them, so that merging sees each task's
whole gradient.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from levelhead.recipe.sampling import Sampling
from levelhead.records import Event, Group, Prompt
from levelhead.tasks.metering import merge, merge_tallies
from levelhead.training import lock
from levelhead.training.batch import Sample
from levelhead.training.collect import Collected, Collector
from levelhead.training.plan import Plan

T = TypeVar("T")


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
    def joined(cls) -> Ranks:
        """Join the processes that a launcher (``accelerate launch``, ``torchrun``) has started; alone without one."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        from accelerate import PartialState

        state = PartialState(cpu=not torch.cuda.is_available())
        return cls(state.process_index, state.num_processes, state.device)

    def folder(self, path: Path, *, resume: bool = False) -> Path:
        """Where this process writes: the first to the run's folder, others beside it.

        With ``resume``, others begin with a copy of the first one's, which is the only one that holds the model.
        """
        own = path.with_name(f"{path.name}.rank-{self.rank}") if self.rank else path
        if resume and self.rank and path.is_dir():
            shutil.rmtree(own, ignore_errors=True)
            shutil.copytree(path, own, ignore=shutil.ignore_patterns(lock.FILE))
        self.gathered(None)  # nobody writes before all have read
        return own

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

    def own(self, plan: Plan) -> Plan:
        """The plan of an update with this process's groups alone; denominators stay those of all."""
        if self.alone:
            return plan
        mine = set(_prefix_groups(plan)[self.rank :: self.count])
        samples = {
            task: [s for s in members if s.sequence.prefix_group in mine] for task, members in plan.samples.items()
        }
        return replace(plan, samples={task: members for task, members in samples.items() if members})

    def all_have(self, plan: Plan) -> bool:
        """Whether every process has live groups of every task in an update, and so the same terms."""
        return all(len(_live(members)) >= self.count for members in plan.samples.values())


class SharedCollector(Collector):
    """Draws and scores the groups of this process's prompts, and returns those of all.

    Args:
        inner: Does the work.
        ranks: The processes.
    """

    def __init__(self, inner: Collector, ranks: Ranks) -> None:
        self._inner, self._ranks, self._loop = inner, ranks, inner.loop

    def events(self, step: int) -> list[Event]:
        """See :meth:`Collector.events`."""
        return self._inner.events(step)

    def at_step(self, step: int, max_steps: int) -> None:
        """See :meth:`Collector.at_step`."""
        self._inner.at_step(step, max_steps)

    def answers(self, groups: Sequence[Group]) -> dict[str, float]:
        """See :meth:`Collector.answers`."""
        return self._inner.answers(groups)

    def render(self, prompt: Prompt) -> Prompt:
        """See :meth:`Collector.render`."""
        return self._inner.render(prompt)

    def completion_ids(self, prompt: Prompt, text: str) -> tuple[int, ...]:
        """See :meth:`Collector.completion_ids`."""
        return self._inner.completion_ids(prompt, text)

    async def collect(self, prompts: Sequence[Prompt], k: int, controls: Sampling, seed: int) -> Collected:
        """See :meth:`Collector.collect`; a completion is drawn by its prompt and index, wherever that happens."""
        ranks = self._ranks
        parts = ranks.gathered(await self._inner.collect(prompts[ranks.rank :: ranks.count], k, controls, seed))
        groups: list[Group] = [parts[i % ranks.count].groups[i // ranks.count] for i in range(len(prompts))]
        whole = Collected(groups)
        for part in parts:
            whole.dropped += part.dropped
            whole.episodes += part.episodes
            whole.unscored += part.unscored
            whole.judges = merge(whole.judges, part.judges)
            whole.tallies = merge_tallies(whole.tallies, part.tallies)
        for name in ("sample_s", "score_s", "env_s"):
            setattr(whole, name, max(getattr(part, name) for part in parts))
        return whole


def _live(members: Sequence[Sample]) -> set[int]:
    return {s.sequence.prefix_group for s in members if s.has_signal and not s.truncated}


def _prefix_groups(plan: Plan) -> list[int]:
    """Groups of an update, task by task, those with signal first: dealt out in turn, they spread the work."""
    order: list[int] = []
    for members in plan.samples.values():
        live = _live(members)
        order += sorted(
            {s.sequence.prefix_group for s in members},
            key=lambda prefix_group: (prefix_group not in live, prefix_group),
        )
    return order
