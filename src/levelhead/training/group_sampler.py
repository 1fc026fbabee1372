"""Samples the groups of a queue: all of a step together where nothing is sampled ahead, else each by itself.

A queue of groups on their way is written down and read again here as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import Sampling
from levelhead.recipe.training import Grpo
from levelhead.records import Group, Prompt
from levelhead.rollout.generators.base import Remote
from levelhead.tasks.base import has_one_turn
from levelhead.tasks.metering import own_account
from levelhead.training.collect import Collector
from levelhead.training.collected import Collected, together
from levelhead.training.episodes import Room, SharedPlaces
from levelhead.training.ranks import Ranks
from levelhead.training.stream import Stream
from levelhead.training.weight_copies import SharedGenerator, WeightCopies, WeightCopy

PATIENCE_S = 5.0
"""Seconds that what was called off has to come to an end."""


@dataclass(frozen=True, slots=True, eq=False)
class PromptBatch:
    """Prompts that were taken together.

    Attributes:
        stream: Position in the prompts before them.
        count: How many.
    """

    stream: Mapping[str, Any]
    count: int


@dataclass(slots=True, eq=False)
class PendingGroup:
    """A group that is to be sampled, is being sampled, or waits for a step that trains on it.

    Attributes:
        number: Of the group in the run, from 0.
        take: What its prompt was taken with.
        place: Of its prompt there.
        prompt: Of the group.
        seed: Of its draws.
        batch: The step that it was planned for.
        controls: With which it is sampled.
        version: Updates that the weights had seen when it was begun.
        weights: Those that sample it; ``None`` before it has been begun.
        drawing: The collection that holds the group, once it is there; ``None`` where this process does not sample it.
        index: Of the group in that collection.
        task: What samples it.
    """

    number: int
    take: PromptBatch
    place: int
    prompt: Prompt
    seed: int
    batch: int
    controls: Sampling
    version: int = 0
    weights: WeightCopy | None = None
    drawing: Future[Collected] | None = None
    index: int = 0
    task: asyncio.Task[Any] | None = None

    def result(self) -> Group:
        """Return a group that is there; one that could not be sampled can be begun again."""
        assert self.drawing is not None  # noqa: S101 - it has been begun
        try:
            return self.drawing.result().groups[self.index]
        except BaseException:
            self.drawing = None
            raise


async def called_off(groups: Sequence[PendingGroup]) -> None:
    """End the sampling of groups, and wait until it has ended."""
    for group in groups:
        if group.drawing is not None:
            group.drawing.cancel()
    if tasks := {group.task for group in groups if group.task is not None}:
        await asyncio.wait(tasks, timeout=PATIENCE_S)
    for group in groups:
        group.drawing = group.task = None


def write_groups(
    groups: Iterable[PendingGroup], weights: Callable[[WeightCopy], list[Tensor]] | None
) -> dict[str, Any]:
    """Write groups as a checkpoint holds them.

    Args:
        groups: In order.
        weights: Returns the weights of a copy; ``None`` where they are not to be sampled by the same ones again.
    """
    takes: list[PromptBatch] = []
    copies: list[WeightCopy] = []
    rows: list[dict[str, Any]] = []
    for group in groups:
        if group.take not in takes:
            takes.append(group.take)
        if group.weights is not None and weights is not None and group.weights not in copies:
            copies.append(group.weights)
        copy = copies.index(group.weights) if group.weights in copies else None
        own = {"number": group.number, "place": group.place, "seed": group.seed, "batch": group.batch}
        rows.append({**own, "take": takes.index(group.take), "copy": copy, "version": group.version})
        rows[-1]["temperature"] = group.controls.temperature
    return {
        "groups": rows,
        "takes": [{"stream": dict(take.stream), "count": take.count} for take in takes],
        "copies": [{"version": c.version, "weights": weights(c)} for c in copies] if weights is not None else [],
    }


def read_groups(
    state: Mapping[str, Any],
    stream: Stream,
    controls: Callable[[int], Sampling],
    restore: Callable[[Iterable[Tensor], int], WeightCopy] | None,
) -> list[PendingGroup]:
    """Return the groups that :func:`write_groups` wrote down, none of them begun; the stream is left anywhere.

    Args:
        state: What was written.
        stream: Gives the same prompts again.
        controls: Returns the sampling controls of a step.
        restore: Makes a copy that holds saved weights of a version; ``None`` where none were saved.
    """
    takes: list[tuple[PromptBatch, list[Prompt]]] = []
    for row in state["takes"]:
        stream.load_state_dict(row["stream"])
        takes.append((PromptBatch(row["stream"], int(row["count"])), stream.take(int(row["count"]))))
    copies: list[WeightCopy] = []
    for row in state["copies"]:
        if restore is None:
            break
        copies.append(restore(row["weights"], int(row["version"])))
        copies[-1].pending = sum(other["copy"] == len(copies) - 1 for other in state["groups"])
    groups: list[PendingGroup] = []
    shared: dict[tuple[int, float], Sampling] = {}  # groups of the same controls are sampled together
    for row in state["groups"]:
        take, prompts = takes[row["take"]]
        place, batch = int(row["place"]), int(row["batch"])
        key = batch, float(row["temperature"])
        sampling = shared.setdefault(key, controls(batch).model_copy(update={"temperature": key[1]}))
        copy = copies[row["copy"]] if copies and row["copy"] is not None else None
        number, seed, version = int(row["number"]), int(row["seed"]), int(row["version"])
        groups.append(PendingGroup(number, take, place, prompts[place], seed, batch, sampling, version, copy))
    return groups


LOOK_S = 0.1
"""How often to look which groups are finished, where a step waits for the first that are."""


@dataclass(frozen=True, slots=True)
class SamplingSetup:
    """What the rollouts of the reinforcement stage are sampled from, by and for.

    Attributes:
        stream: Chooses prompts.
        collector: Samples and scores rollouts.
        config: The ``grpo`` section; it says how far ahead to sample.
        seed: Seed of all sampling.
        policy: What is trained.
        controls: Returns the sampling controls of a step, as the guard's overrides stand.
        ranks: The processes that share the work.
        keeps: Whether to hand out, with rollouts sampled ahead, the weights that sampled the oldest.
    """

    stream: Stream
    collector: Collector
    config: Grpo
    seed: int
    policy: Policy
    controls: Callable[[int], Sampling]
    ranks: Ranks
    keeps: bool = False


class GroupSampler:
    """Begins groups, and waits for them; several processes sample those whose number is theirs.

    Args:
        setup: What rollouts are sampled from, by and for.
    """

    def __init__(self, setup: SamplingSetup) -> None:
        self._collector, self._config, self._ranks = setup.collector.own, setup.config, setup.ranks
        self._loop = setup.collector.loop
        ahead = setup.config.ahead > 0
        self.copies = WeightCopies(setup.policy, setup.collector.generator, self._loop, ahead=ahead)
        self._fresh: WeightCopy | None = None
        self._rooms: dict[str, Room] = {}
        self._whole: Future[Collected] | None = None

    def outdate(self) -> None:
        """Take note that the weights have changed: what is begun from now on takes a new copy."""
        self._fresh = None

    def begin(self, groups: Sequence[PendingGroup]) -> None:
        """Begin what has not been begun: with the newest weights, or with those that sampled it before."""
        bare = [group for group in groups if group.weights is None]
        if bare and self._fresh is None:
            self._fresh = self.copies.newest()
        for group in bare:
            assert self._fresh is not None  # noqa: S101 - just taken
            group.weights, group.version = self._fresh, self._fresh.version
            self._fresh.pending += 1
        if not self._config.ahead:
            self._begin_whole(groups)
            return
        k = self._config.group_size
        shared: dict[tuple[int, int], list[PendingGroup]] = {}
        for group in groups:
            assert group.weights is not None  # noqa: S101 - all have some now
            if group.drawing is not None or group.number % self._ranks.count != self._ranks.rank:
                continue
            if has_one_turn(self._collector.task(group.prompt.task)):
                shared.setdefault((id(group.weights), group.seed), []).append(group)
            else:
                generator = self.copies.generator(group.weights)
                self._submit(group, generator if self.copies.reproducible else SharedGenerator(generator, 0))
        for members in shared.values():  # what asks once samples at once: fewer passes, and nobody waits for another
            assert members[0].weights is not None  # noqa: S101 - as above
            generator = self.copies.generator(members[0].weights)
            generator.expect(len(members) * k)
            for place, group in enumerate(members):
                self._submit(group, SharedGenerator(generator, place * k))

    def _begin_whole(self, groups: Sequence[PendingGroup]) -> None:
        """Begin groups as one collection: those of a seed together, one seed after another."""
        mine = [group for group in groups if group.place % self._ranks.count == self._ranks.rank]
        mine = [group for group in mine if group.drawing is None]
        if not groups or (self._whole is not None and not mine and not self._whole.done()):
            return
        batch, controls, k = groups[0].batch, groups[0].controls, self._config.group_size
        by_seed: dict[int, list[PendingGroup]] = {group.seed: [] for group in groups[:1]}
        for group in mine:
            by_seed.setdefault(group.seed, []).append(group)

        async def collect() -> Collected:
            for group in mine:
                group.task = asyncio.current_task()
            self._collector.at_step(batch - 1, self._config.steps)
            parts = [
                await self._collector.collect([group.prompt for group in members], k, controls, seed)
                for seed, members in by_seed.items()
            ]
            whole = parts[0]
            for part in parts[1:]:
                whole.groups += part.groups
                whole.add_cost(part)
            return whole

        self._whole = self._loop.submit(collect())
        for index, group in enumerate(group for members in by_seed.values() for group in members):
            group.drawing, group.index = self._whole, index

    def _submit(self, group: PendingGroup, generator: Any) -> None:
        places = SharedPlaces(self._rooms, group.batch - 1, self._config.steps)
        collector = self._collector.of_group(generator, places)

        async def collect() -> Collected:
            group.task = asyncio.current_task()
            try:
                with own_account():
                    return await collector.collect([group.prompt], self._config.group_size, group.controls, group.seed)
            except BaseException:
                if isinstance(generator, SharedGenerator):
                    generator.abandon(self._config.group_size)
                raise

        group.drawing = self._loop.submit(collect())

    def results(self, groups: Sequence[PendingGroup]) -> tuple[Collected, list[Group]]:
        """Wait for groups, on all processes; an error of one of them is raised in all."""

        def mine() -> tuple[dict[int, Group], list[Collected]]:
            own = [group for group in groups if group.drawing is not None]
            whole, self._whole = [self._whole] if self._whole is not None else [], None
            futures = dict.fromkeys([*whole, *(group.drawing for group in own if group.drawing is not None)])
            for future in futures:
                with self._giving_up():
                    self._loop.wait(future)
            own_groups = {group.number: group.result() for group in own}
            return own_groups, [future.result() for future in futures]

        parts = self._ranks.agreed(mine)
        by_number = {number: group for in_order, _ in parts for number, group in in_order.items()}
        in_order = [by_number[group.number] for group in groups]
        return together([cost for _, costs in parts for cost in costs], in_order), in_order

    def finished(self, groups: Sequence[PendingGroup]) -> dict[int, int]:
        """The oldest weights of each group of this process that is finished, by its number."""
        own = [group for group in groups if group.drawing is not None and group.drawing.done()]
        return {group.number: oldest_version(group, group.result()) for group in own}

    def wait_for_next(self, groups: Sequence[PendingGroup]) -> None:
        """Wait until one more group of this process is finished, and not for long: others may have one."""

        async def next_finished() -> None:
            tasks = [group.task for group in groups if group.task is not None and not group.task.done()]
            if tasks:
                await asyncio.wait(tasks, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0.01)

        with self._loop.giving_up():
            self._loop.wait(self._loop.submit(next_finished()))

    def wait(self, groups: Sequence[PendingGroup]) -> None:
        """Wait until groups have ended, whatever becomes of them."""
        for group in groups:
            if group.drawing is not None:
                with self._giving_up():
                    self._loop.wait(group.drawing)

    def call_off(self, groups: Sequence[PendingGroup]) -> None:
        """End the sampling of groups; they can be begun again."""
        self._loop.run(called_off(groups))

    def rest(self) -> None:
        """Let servers rest while the policy is trained."""
        if isinstance(self._collector.generator, Remote):
            self._loop.run(self._collector.generator.rest())

    def close(self, groups: Sequence[PendingGroup]) -> None:
        """Call off groups, and release what samples them."""
        if self._whole is not None:
            self._whole.cancel()
        self.call_off(groups)
        self.copies.close()

    def _giving_up(self) -> AbstractContextManager[None]:
        """While groups that later steps are for are waited for, the first interrupt ends the wait."""
        return self._loop.giving_up() if self._config.ahead else nullcontext()


def oldest_version(pending: PendingGroup, group: Group) -> int:
    """The oldest weights that wrote a token of a group; one without rollouts is as old as the weights it was given."""
    return min((rollout.policy_version for rollout in group.rollouts), default=pending.version)
