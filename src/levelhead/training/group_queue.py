"""Hands out the groups of each step from a queue of groups that are sampled up to N steps ahead (``grpo.async: N``).

Groups are the unit: each is sampled and scored by itself, and one that takes long holds up no other.  A group is
written by the weights that a step started from, and trained on at most N steps later.

Where the policy itself samples, everything is fixed by the step: while step s trains, the groups of steps s + 1 to s +
N are under way, those of step s + N sampled by the weights that step s started from.  Timing changes no number.
Servers are asked for no such thing: there a step trains on the first groups that are finished, those of the longest
wait first, and what has come too late for N is dropped and sampled again from the same prompt.

Several processes sample the groups whose number is theirs, and are gathered when a step asks for groups: nothing that
they do in between is a collective.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from levelhead import metrics as metric
from levelhead.recipe.sampling import Sampling
from levelhead.records import Event, Group, Prompt
from levelhead.rollout.draws import derive
from levelhead.rollout.generators.base import Capabilities
from levelhead.tasks.base import SingleTurnTask
from levelhead.tasks.metering import JudgeUse, merge, use_metrics
from levelhead.training.batches import Batches, PromptPosition, SamplingSetup
from levelhead.training.collect import Collected, rollout_seed
from levelhead.training.curriculum import has_contrast
from levelhead.training.group_collector import GroupCollector, GroupRequest, Room, drained, together
from levelhead.training.pending_group import PendingGroup, Take, called_off, read_line, write_line
from levelhead.training.rollout_batcher import describe, fill
from levelhead.training.weight_copies import SharedLane, WeightCopies, WeightCopy

LOOK_S = 0.1
"""How often to look which groups are finished, where a step waits for the first that are."""


class GroupQueue:
    """The groups of the reinforcement stage, as its steps ask for them; see also :class:`Batches`.

    Args:
        setup: What rollouts are sampled from, by and for.
    """

    def __init__(self, setup: SamplingSetup) -> None:
        self._stream, self._collector = setup.stream, setup.collector.own
        self._config, self._seed = setup.config, setup.seed
        self._policy, self._controls, self._ranks, self._keeps = setup.policy, setup.controls, setup.ranks, setup.keeps
        self._loop = setup.collector.loop
        self._copies = WeightCopies(setup.policy, setup.collector.generator, self._loop)
        self._line: list[PendingGroup] = []
        self._begun = self._planned = 0
        self._starts: dict[int, int] = {}
        self._fresh: WeightCopy | None = None
        self._rooms: dict[str, Room] = {}
        self._taken: list[Prompt] = []
        self._dropped = 0
        self._events: list[Event] = []
        self._back: dict[str, Any] | None = None

    def draw(self, step: int, controls: Sampling, redraws: int = 0) -> Collected:
        """Hand out the groups of a step, and see to it that those of the next N steps are under way.

        Args:
            step: Of the run, from 1; the weights are those that it starts from.
            controls: Sampling controls of the step, for groups that are begun for it now.
            redraws: May raise the recipe's bound on redraws.

        Raises:
            Exception: What kept a group from being sampled; the step can be asked for again.
        """
        wanted = self._config.batch_size // self._config.group_size
        self._note_start(step)
        values = self._stream.metrics()
        self._renew({g.number for g in self._line if g.weights and self._age(g.version, step) > self._most})
        self._fill(wanted, step, controls)
        if not self._copies.reproducible:
            self._fill((1 + self._most) * wanted, step)
        groups = self._line[:wanted] if self._copies.reproducible else self._first_finished(step, wanted)
        result, drawn, more = self._contrasted(step, groups, wanted, redraws, values)
        describe(result, drawn, values, self._collector, groups[0].controls)
        self._describe_age(result, [*groups, *more], drawn, step)
        self._release([*groups, *more])
        if self._copies.reproducible:
            self._fill(self._most * wanted, step)
        self._events += [*self._loop.run(self._happened(step)), *self._copies.stale_events(step)]
        result.prompts, self._taken = self._taken, []
        return result

    @property
    def capabilities(self) -> Capabilities:
        """What the generator can do."""
        return self._collector.generator.capabilities

    def events(self, step: int) -> list[Event]:  # noqa: ARG002
        """What happened to the tasks until the groups of a step were there."""
        happened, self._events = self._events, []
        return happened

    def upcoming(self) -> list[Prompt]:
        """The prompts of the next step, as far as they are fixed, before any gives way to others."""
        wanted = self._config.batch_size // self._config.group_size
        return [group.prompt for group in self._line[:wanted]] or self._stream.peek(wanted)

    @property
    def pending(self) -> dict[str, Any]:
        """The groups on their way, as JSON; empty where there are none."""
        rows = [[g.number, g.prompt.task, g.prompt.id, g.seed, g.version, g.controls.temperature] for g in self._line]
        return {"groups": rows} if rows else {}

    def state_dict(self) -> dict[str, Any]:
        """The groups on their way and the weights that sample them: sampled again, they are the same."""
        weights = self._copies.weights if self._copies.reproducible else None
        return {
            # What a run of another grpo.async finds: no batch on its way; it draws from the same prompts.
            "pending": {},
            "weights": [],
            **write_line(self._line, weights),
            "begun": self._begun,
            "planned": self._planned,
            "starts": [[*pair] for pair in self._starts.items()],
            "stream": self._stream.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; groups are sampled when the next step asks for them."""
        if "groups" not in state:
            return
        self._begun, self._planned = int(state["begun"]), int(state["planned"])
        self._starts = {int(step): int(version) for step, version in state["starts"]}
        restore = self._copies.restored if self._copies.reproducible else None
        self._line = read_line(state, self._stream, self._controls, restore)
        self._stream.load_state_dict(state["stream"])

    @property
    def position(self) -> PromptPosition:
        """The position in the prompts, for a checkpoint."""
        return PromptPosition(self)

    def unread_position(self) -> dict[str, Any]:
        """Position in the prompts before the first group that has not been handed out, as JSON."""
        if self._back is not None:
            return self._back
        return dict(self._line[0].take.stream) if self._line else self._stream.state_dict()

    def go_to(self, position: Mapping[str, Any]) -> None:
        """Have :meth:`unread_position` give a position that it gave before: the step from there has failed."""
        self.settle()
        self._back = dict(position)

    def settle(self) -> None:
        """Wait until no task is in use, whatever becomes of the groups on their way."""
        for group in self._line:
            if group.drawing is not None:
                with self._loop.giving_up():
                    self._loop.wait(group.drawing)

    def forget(self) -> None:
        """Sample all groups on their way again when the next step asks: the weights that sampled them are gone."""
        self._renew({group.number for group in self._line})
        self._dropped = 0
        controls = {batch: self._controls(batch) for batch in {group.batch for group in self._line}}
        for group in self._line:
            group.controls = controls[group.batch]

    def close(self) -> None:
        """Call off the groups on their way; where they stand can still be saved."""
        self._loop.run(called_off(self._line))
        self._copies.close()

    @property
    def _most(self) -> int:
        """Steps that a group may be old."""
        return self._config.ahead

    def _note_start(self, step: int) -> None:
        """Take down the weights that a step starts from."""
        self._back, self._fresh = None, None
        kept_from = step - self._most - 1
        self._starts = {s: version for s, version in self._starts.items() if kept_from <= s < step}
        self._starts[step] = self._policy.version

    def _age(self, version: int, step: int) -> int:
        """How many steps the weights of a step are ahead of those of a version."""
        started = [s for s, at in self._starts.items() if at <= version]
        return step - max(started) if started else self._most + 1

    def _fill(self, groups: int, step: int, controls: Sampling | None = None) -> None:
        """See to it that so many groups are under way, as far as steps are left that train on them.

        Args:
            groups: How many.
            step: Whose weights sample those that are begun now.
            controls: Of that step, where the groups may be for itself.
        """
        wanted = self._config.batch_size // self._config.group_size
        self._planned = max(self._planned, step - 1)
        while len(self._line) < groups and (self._planned < self._config.steps or controls is not None):
            self._planned += 1
            given = controls if controls is not None else self._controls(self._planned)
            self._line += self._take(wanted, self._planned, given)
        self._begin(self._line)

    def _take(self, n: int, batch: int, controls: Sampling, again: int = 0) -> list[PendingGroup]:
        """Take prompts for groups of a batch; one that comes more than once has other draws each time."""
        take = Take(self._stream.state_dict(), n)
        prompts = self._stream.take(n)
        self._taken += prompts
        whole = rollout_seed(self._seed, batch)
        whole = derive(whole, "again", again) if again else whole
        visits: Counter[tuple[str, str]] = Counter()
        groups: list[PendingGroup] = []
        for place, prompt in enumerate(prompts):
            visit = visits[prompt.task, prompt.id]
            visits[prompt.task, prompt.id] += 1
            seed = derive(whole, "visit", visit) if visit else whole
            groups.append(PendingGroup(self._begun, take, place, prompt, seed, batch, controls))
            self._begun += 1
        return groups

    def _begin(self, groups: Iterable[PendingGroup]) -> None:
        """Begin what has not been begun: with the newest weights, or with those that sampled it before."""
        groups = list(groups)
        bare = [group for group in groups if group.weights is None]
        if bare and self._fresh is None:
            self._fresh = self._copies.newest()
        for group in bare:
            assert self._fresh is not None  # noqa: S101 - just taken
            group.weights, group.version = self._fresh, self._fresh.version
            self._fresh.pending += 1
        k = self._config.group_size
        together: dict[tuple[int, int], list[PendingGroup]] = {}
        for group in groups:
            assert group.weights is not None  # noqa: S101 - all have some now
            if group.drawing is not None or group.number % self._ranks.count != self._ranks.rank:
                continue
            if isinstance(self._collector.task(group.prompt.task), SingleTurnTask):
                together.setdefault((id(group.weights), group.seed), []).append(group)
            else:
                lane = self._copies.lane(group.weights)
                self._submit(group, lane if self._copies.reproducible else SharedLane(lane, 0))
        for members in together.values():  # what asks once samples at once: fewer passes, and nobody waits for another
            assert members[0].weights is not None  # noqa: S101 - as above
            lane = self._copies.lane(members[0].weights)
            lane.expect(len(members) * k)
            for place, group in enumerate(members):
                self._submit(group, SharedLane(lane, place * k))

    def _submit(self, group: PendingGroup, lane: Any) -> None:
        request = GroupRequest(group.prompt, group.controls, group.seed, group.batch - 1, self._config.steps)
        collector = GroupCollector(self._collector, lane, self._rooms, request)

        async def draw() -> Collected:
            group.task = asyncio.current_task()
            try:
                return await collector.draw(self._config.group_size)
            except BaseException:
                if isinstance(lane, SharedLane):
                    lane.abandon(self._config.group_size)
                raise

        group.drawing = self._loop.submit(draw())

    def _results(self, groups: Sequence[PendingGroup]) -> list[Collected]:
        """Wait for groups, on all processes; an error of one of them is raised in all."""

        def mine() -> dict[int, Collected]:
            own = [group for group in groups if group.drawing is not None]
            for group in own:
                assert group.drawing is not None  # noqa: S101 - just asked
                with self._loop.giving_up():
                    self._loop.wait(group.drawing)
            return {group.number: group.result() for group in own}

        parts = {number: part for own in self._ranks.agreed(mine) for number, part in own.items()}
        return [parts[group.number] for group in groups]

    def _contrasted(
        self, step: int, groups: list[PendingGroup], wanted: int, redraws: int, values: dict[str, float]
    ) -> tuple[Collected, list[Group], list[PendingGroup]]:
        """Return what was sampled, all its groups, and the groups that were sampled in place of those without contrast.

        These are written by the weights of the step itself.
        """
        result = together(self._results(groups))
        drawn = list(result.groups)
        self._stream.learn(drawn, step)
        most, rounds, others = max(self._config.dynamic_sampling, redraws), 0, list[PendingGroup]()
        while rounds < most and (short := wanted - sum(map(has_contrast, drawn))) > 0:
            rounds += 1
            more = self._take(short, step, groups[0].controls, rounds)
            self._begin(more)
            others += more
            part = together(self._results(more))
            self._stream.learn(part.groups, step)
            drawn += part.groups
            result.add_cost(part)
        if most:
            values |= fill(result, drawn, wanted, rounds)
        return result, drawn, others

    def _describe_age(self, result: Collected, pending: list[PendingGroup], drawn: list[Group], step: int) -> None:
        """Note how old the groups of a step are, and what judges have done until now."""
        versions = [_oldest(group, written) for group, written in zip(pending, drawn, strict=True)]
        ages = [self._age(version, step) for version in versions]
        behind = [self._policy.version - version for version in versions]
        result.behind = max(behind)
        result.values |= {
            metric.OFF_POLICY: fmean(behind),
            metric.STALENESS_MEAN: fmean(ages),
            metric.STALENESS_MAX: float(max(ages)),
            metric.STALENESS_DROPPED: float(self._dropped),
        }
        self._dropped = 0
        oldest = pending[versions.index(min(versions))].weights
        if self._keeps and result.behind and oldest is not None:
            result.sampler_weights = self._copies.pieces(oldest)
        uses: dict[str, JudgeUse] = {}
        for part in self._ranks.gathered(self._loop.run(self._used())):
            uses = merge(uses, part)
        for values in use_metrics(uses):  # whose step a judge's call counts for depends on the clock
            result.timings |= values

    def _first_finished(self, step: int, wanted: int) -> list[PendingGroup]:
        """Wait for so many finished groups, of one temperature; those that are too old by then are sampled again."""
        while True:
            versions = {n: v for part in self._ranks.agreed(self._finished) for n, v in part.items()}
            late = {number for number, version in versions.items() if self._age(version, step) > self._most}
            self._renew(late)
            self._begin(self._line)
            ready = [group for group in self._line if group.number in versions.keys() - late]
            ready = [g for g in ready if g.controls.temperature == ready[0].controls.temperature]
            if len(ready) >= wanted:
                return ready[:wanted]
            with self._loop.giving_up():
                self._loop.wait(self._loop.submit(self._next_finished()))

    def _finished(self) -> dict[int, int]:
        """The oldest weights of each group of this process that is finished, by its number."""
        own = [group for group in self._line if group.drawing is not None and group.drawing.done()]
        return {group.number: _oldest(group, group.result().groups[0]) for group in own}

    async def _next_finished(self) -> None:
        """Wait for a group of this process, and not for long: others may have one."""
        tasks = [group.task for group in self._line if group.task is not None and not group.task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.01)

    def _renew(self, numbers: set[int]) -> None:
        """Call groups off, to be sampled again by the weights of the next step that begins any."""
        groups = [group for group in self._line if group.number in numbers]
        self._loop.run(called_off(groups))
        self._release(groups, gone=False)
        self._dropped += len(groups)
        for group in groups:
            group.weights = None

    def _release(self, groups: Sequence[PendingGroup], *, gone: bool = True) -> None:
        """Give back the weights of groups, which leave the queue unless they are sampled again."""
        for group in groups:
            if group.weights is not None:
                group.weights.pending -= 1
        if gone:
            numbers = {group.number for group in groups}
            self._line = [group for group in self._line if group.number not in numbers]

    async def _happened(self, step: int) -> list[Event]:
        return self._collector.events(step)

    async def _used(self) -> Mapping[str, JudgeUse]:
        return drained(self._collector)


def _oldest(pending: PendingGroup, group: Group) -> int:
    """The oldest weights that wrote a token of a group; one without rollouts is as old as the weights it was given."""
    return min((rollout.policy_version for rollout in group.rollouts), default=pending.version)


def make_batches(setup: SamplingSetup) -> Batches | GroupQueue:
    """Return what hands out the rollouts of each step; nothing else decides between the two.

    Batch by batch where none is sampled ahead, or one by a single process; else from a queue of groups.
    """
    ahead = setup.config.ahead
    return GroupQueue(setup) if ahead > 1 or (ahead and not setup.ranks.alone) else Batches(setup)
