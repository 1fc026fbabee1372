"""Hands out the groups of each step from a queue of groups that are sampled up to N steps ahead (``grpo.async: N``).

With N = 0 a step's groups are sampled together when it begins, by the policy itself.  Else groups are the unit: each is
sampled and scored by itself, and one that takes long holds up no other.  A group is written by the weights that a step
started from, and trained on at most N steps later.

Where the policy itself samples, everything is fixed by the step: while step s trains, the groups of steps s + 1 to s +
N are under way, those of step s + N sampled by the weights that step s started from.  Timing changes no number.
Servers are asked for no such thing: there a step trains on the first groups that are finished, those of the longest
wait first, and what has come too late for N is dropped and sampled again from the same prompt.

Several processes sample the groups whose number is theirs, and are gathered when a step asks for groups: nothing that
they do in between is a collective.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from levelhead import metrics as metric
from levelhead.recipe.sampling import Sampling
from levelhead.records import Event, Group, Prompt
from levelhead.rollout.draws import derive
from levelhead.rollout.generators.base import Capabilities
from levelhead.tasks.metering import JudgeUse, merge, use_metrics
from levelhead.training.batch_report import choose_trained_groups, describe
from levelhead.training.collect import rollout_seed
from levelhead.training.collected import Collected
from levelhead.training.curriculum import has_contrast
from levelhead.training.group_sampler import (
    GroupSampler,
    PendingGroup,
    PromptBatch,
    SamplingSetup,
    oldest_version,
    read_groups,
    write_groups,
)


class GroupQueue:
    """The groups of the reinforcement stage, as its steps ask for them.

    Args:
        setup: What rollouts are sampled from, by and for.
    """

    def __init__(self, setup: SamplingSetup) -> None:
        self._stream, self._collector = setup.stream, setup.collector.own
        self._config, self._seed = setup.config, setup.seed
        self._policy, self._controls, self._ranks, self._keeps = setup.policy, setup.controls, setup.ranks, setup.keeps
        self._loop = setup.collector.loop
        self._sampler = GroupSampler(setup)
        self._copies = self._sampler.copies
        self._queue: list[PendingGroup] = []  # under way or sampled, for the next steps
        self._begun = self._planned = 0  # groups begun in all; the last step that has groups
        self._starts: dict[int, int] = {}  # version of the weights that each step starts from
        self._taken: list[Prompt] = []
        self._dropped = 0
        self._events: list[Event] = []
        self._restart_position: dict[str, Any] | None = None

    def next(self, step: int, controls: Sampling, redraws: int = 0) -> Collected:
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
        self._renew({g.number for g in self._queue if g.weights and self._age(g.version, step) > self._max_age})
        self._fill(wanted, step, controls)
        if not self._copies.reproducible:
            self._fill((1 + self._max_age) * wanted, step)
        groups = self._queue[:wanted] if self._copies.reproducible else self._first_finished(step, wanted)
        result, drawn, more = self._with_redraws(step, groups, wanted, redraws, values)
        describe(result, drawn, values, self._collector, groups[0].controls)
        if self._max_age:
            self._describe_age(result, [*groups, *more], drawn, step)
        else:
            self._sampler.rest()
        self._release([*groups, *more])
        if self._copies.reproducible:
            self._fill(self._max_age * wanted, step)
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
        return [group.prompt for group in self._queue[:wanted]] or self._stream.peek(wanted)

    @property
    def pending(self) -> dict[str, Any]:
        """The groups on their way, as JSON; empty where there are none."""
        rows = [[g.number, g.prompt.task, g.prompt.id, g.seed, g.version, g.controls.temperature] for g in self._queue]
        return {"groups": rows} if rows else {}

    def state_dict(self) -> dict[str, Any]:
        """The groups on their way and the weights that sample them: sampled again, they are the same."""
        weights = self._copies.weights if self._copies.reproducible else None
        return {
            # What a run of another grpo.async finds: no batch on its way; it draws from the same prompts.
            "pending": {},
            "weights": [],
            **write_groups(self._queue, weights),
            "begun": self._begun,
            "planned": self._planned,
            "starts": [[*pair] for pair in self._starts.items()],
            "stream": self._stream.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; groups are sampled when the next step asks for them."""
        if not self._max_age:  # whatever was on its way is sampled again, from the same prompts
            self._queue = []
            if "begun" in state and not state["groups"]:
                self._count(state)
            if position := (state.get("takes") or [state])[0].get("stream"):
                self._stream.load_state_dict(position)
            return
        if "groups" not in state:
            self._restore_old_batch(state)
            return
        self._count(state)
        restore = self._copies.restored if self._copies.reproducible else None
        self._queue = read_groups(state, self._stream, self._controls, restore)
        self._stream.load_state_dict(state["stream"])

    def _count(self, state: Mapping[str, Any]) -> None:
        """Go on counting groups, batches and the steps' weights where a state left off."""
        self._begun, self._planned = int(state["begun"]), int(state["planned"])
        self._starts = {int(step): int(version) for step, version in state["starts"]}

    def _restore_old_batch(self, state: Mapping[str, Any]) -> None:
        """Take up the batch on its way that a checkpoint of before there was one queue holds of ``grpo.async: 1``."""
        if not (pending := state["pending"]) or not self._copies.reproducible:
            return
        step, copy = int(pending["step"]), self._copies.restored(state["weights"], int(pending["version"]))
        controls = self._controls(step).model_copy(update={"temperature": pending["temperature"]})
        self._queue = self._take(self._config.batch_size // self._config.group_size, step, controls)
        for group in self._queue:
            group.weights, group.version = copy, copy.version
        copy.pending, self._planned = len(self._queue), step
        self._starts[step - 1] = copy.version

    @property
    def position(self) -> PromptPosition:
        """The position in the prompts, for a checkpoint."""
        return PromptPosition(self)

    def unread_position(self) -> dict[str, Any]:
        """Position in the prompts before the first group that has not been handed out, as JSON."""
        if self._restart_position is not None:
            return self._restart_position
        return dict(self._queue[0].take.stream) if self._queue else self._stream.state_dict()

    def go_to(self, position: Mapping[str, Any]) -> None:
        """Have :meth:`unread_position` give a position that it gave before: the step from there has failed."""
        self.settle()
        self._restart_position = dict(position)

    def settle(self) -> None:
        """Wait until no task is in use, whatever becomes of the groups on their way."""
        self._sampler.wait(self._queue)

    def forget(self) -> None:
        """Sample all groups on their way again when the next step asks: the weights that sampled them are gone."""
        self._renew({group.number for group in self._queue})
        self._dropped = 0
        controls = {batch: self._controls(batch) for batch in {group.batch for group in self._queue}}
        for group in self._queue:
            group.controls = controls[group.batch]

    def close(self) -> None:
        """Call off the groups on their way; where they stand can still be saved."""
        self._sampler.close(self._queue)

    @property
    def _max_age(self) -> int:
        """Steps that a group may be old."""
        return self._config.ahead

    def _note_start(self, step: int) -> None:
        """Take down the weights that a step starts from."""
        self._restart_position = None
        self._sampler.outdate()
        kept_from = step - self._max_age - 1
        self._starts = {s: version for s, version in self._starts.items() if kept_from <= s < step}
        self._starts[step] = self._policy.version

    def _age(self, version: int, step: int) -> int:
        """How many steps the weights of a step are ahead of those of a version."""
        started = [s for s, at in self._starts.items() if at <= version]
        return step - max(started) if started else self._max_age + 1

    def _fill(self, groups: int, step: int, controls: Sampling | None = None) -> None:
        """See to it that so many groups are under way, as far as steps are left that train on them.

        Args:
            groups: How many.
            step: Whose weights sample those that are begun now.
            controls: Of that step, where the groups may be for itself.
        """
        wanted = self._config.batch_size // self._config.group_size
        self._planned = max(self._planned, step - 1)
        while len(self._queue) < groups and (self._planned < self._config.steps or controls is not None):
            self._planned += 1
            sampling = controls if controls is not None else self._controls(self._planned)
            self._queue += self._take(wanted, self._planned, sampling)
        self._sampler.begin(self._queue)

    def _take(self, n: int, batch: int, controls: Sampling, again: int = 0) -> list[PendingGroup]:
        """Take prompts for groups of a batch; one that comes more than once has other draws each time."""
        take = PromptBatch(self._stream.state_dict(), n)
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

    def _with_redraws(
        self, step: int, groups: list[PendingGroup], wanted: int, redraws: int, values: dict[str, float]
    ) -> tuple[Collected, list[Group], list[PendingGroup]]:
        """Return what was sampled, all its groups, and the groups that were sampled in place of those without contrast.

        The replacements are sampled by the step's own weights.
        """
        result, drawn = self._sampler.results(groups)
        self._stream.learn(drawn, step)
        most, rounds, others = max(self._config.dynamic_sampling, redraws), 0, list[PendingGroup]()
        while rounds < most and (short := wanted - sum(has_contrast(group, self._config) for group in drawn)) > 0:
            rounds += 1
            more = self._take(short, step, groups[0].controls, rounds)
            self._sampler.begin(more)
            others += more
            part, found = self._sampler.results(more)
            self._stream.learn(found, step)
            drawn = [*drawn, *found]
            result.add_cost(part)
        if most:
            values |= choose_trained_groups(result, drawn, wanted, rounds, self._config)
        return result, drawn, others

    def _describe_age(self, result: Collected, pending: list[PendingGroup], drawn: list[Group], step: int) -> None:
        """Note how old the groups of a step are, and what judges have done until now."""
        versions = [oldest_version(group, written) for group, written in zip(pending, drawn, strict=True)]
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
            versions = {
                n: v
                for part in self._ranks.agreed(lambda: self._sampler.finished(self._queue))
                for n, v in part.items()
            }
            late = {number for number, version in versions.items() if self._age(version, step) > self._max_age}
            self._renew(late)
            self._sampler.begin(self._queue)
            ready = [group for group in self._queue if group.number in versions.keys() - late]
            ready = [g for g in ready if g.controls.temperature == ready[0].controls.temperature]
            if len(ready) >= wanted:
                return ready[:wanted]
            self._sampler.wait_for_next(self._queue)

    def _renew(self, numbers: set[int]) -> None:
        """Call groups off, to be sampled again by the weights of the next step that begins any."""
        groups = [group for group in self._queue if group.number in numbers]
        self._sampler.call_off(groups)
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
            self._queue = [group for group in self._queue if group.number not in numbers]

    async def _happened(self, step: int) -> list[Event]:
        return self._collector.events(step)

    async def _used(self) -> Mapping[str, JudgeUse]:
        return self._collector.drain_use()


class PromptPosition:
    """The position in the prompts before the first group that has not been handed out, for a checkpoint.

    Args:
        queue: Whose position it is.
    """

    def __init__(self, queue: GroupQueue) -> None:
        self._queue = queue

    def state_dict(self) -> dict[str, Any]:
        """Return the position, as JSON."""
        return self._queue.unread_position()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position that :meth:`state_dict` gave."""
        self._queue.go_to(state)
