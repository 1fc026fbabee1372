"""Group-relative policy optimisation: one step, readable from top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from levelhead import metrics as metric
from levelhead.objective.audit import Auditor
from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import TrainSampling
from levelhead.recipe.training import Grpo
from levelhead.records import Event, Group, Knobs, Observer, Prompt, StepRecord
from levelhead.rollout.draws import derive
from levelhead.tasks.metering import logged_metrics
from levelhead.training.advantages import AdvantageEstimator
from levelhead.training.batch import Batch, Sample, make_batch
from levelhead.training.batches import Batches
from levelhead.training.collect import Collected, Collector, rollout_seed
from levelhead.training.identities import Unwatched
from levelhead.training.merging import accumulate, make_merger, switch_events
from levelhead.training.objective import Objective, Plan
from levelhead.training.optim import Updater, lost_gradient
from levelhead.training.ranks import Ranks
from levelhead.training.recompute import Scores, distorts, recompute_logprobs, wanted, with_own_logprobs
from levelhead.training.sharding.passes import accumulate_in_step
from levelhead.training.signs import SignAudits
from levelhead.training.stream import Stream
from levelhead.training.trust_region import TrustRegion, find_guard
from levelhead.training.unrated import CODE as UNRATED
from levelhead.training.unrated import UnratedWatch

OWN = ("step", "stage")
"""Keys of a line of ``metrics.jsonl`` that are no metrics."""


@dataclass(slots=True)
class StepResult:
    """What one step leaves behind.

    Attributes:
        record: Its numbers.
        groups: The rollouts, for the record.
        advantages: Advantage of each rollout of each group.
        events: What was seen or done.
        stop: Whether an observer asked to stop.
    """

    record: StepRecord
    groups: Sequence[Group]
    advantages: Sequence[Sequence[float]]
    events: list[Event] = field(default_factory=list)
    stop: bool = False

    @property
    def news(self) -> list[Event]:
        """The events but those that end the run."""
        return [event for event in self.events if event not in self.ends]

    @property
    def ends(self) -> list[Event]:
        """The events that end the run; they are to be the last of it."""
        return [event for event in self.events if event.action == "stop"] if self.stop else []


class GrpoTrainer:
    """Draws, scores, and updates.

    Args:
        policy: What is trained.
        collector: Draws and scores rollouts.
        stream: Chooses training prompts.
        objective: Terms and their coefficients.
        updater: The optimizer.
        recipe: The ``grpo`` section.
        seed: Of every draw.
        observers: Shown every record; the guard is one.
        estimator: Rewards to advantages; without shaping unless given.
        ranks: The processes that share the work.
        watch: Looks on, and checks what must be exactly so.
    """

    def __init__(
        self,
        policy: Policy,
        collector: Collector,
        stream: Stream,
        objective: Objective,
        updater: Updater,
        recipe: Grpo,
        seed: int,
        observers: Sequence[Observer] = (),
        estimator: AdvantageEstimator | None = None,
        ranks: Ranks | None = None,
        watch: Unwatched | None = None,
    ) -> None:
        self.ranks, self.watch = ranks or Ranks(), watch or Unwatched()
        self.policy, self.objective, self.updater = policy, objective, updater
        self.policy.version = updater.done
        self.recipe, self.seed, self.observers = recipe, seed, observers
        self.estimator = estimator or AdvantageEstimator(recipe, {})
        self.merger = make_merger(policy, recipe, seed, tuple(objective.kl_coefs), self.ranks)
        self.merger.witness = self.watch.witness
        self.audits = SignAudits(policy, objective, recipe, self.merger, self.ranks)
        guard = find_guard(observers)
        tokens = recipe.tokens_per_microbatch
        self.trust_region = TrustRegion(policy, updater, objective, guard, tokens, self.ranks) if guard else None
        keeps = self.trust_region is not None and self.trust_region.guard.corrects
        self.batches = Batches(
            stream,
            collector,
            recipe,
            seed,
            policy=policy,
            controls=self._controls,
            synced=self.watch.synced,
            keeps=keeps,
        )
        self.unrated = UnratedWatch()

    def step(self, step: int) -> StepResult:
        """Do rollout batch ``step``, counted from 1, with all its updates."""
        start = time.perf_counter()
        if self.trust_region:
            self.trust_region.begin()
        self.watch.begin(self.trust_region.guard.knobs if self.trust_region else Knobs())
        self.policy.sync_sampler()
        rollouts = self.batches.draw(step, self._controls(step), self.objective.knobs.redraws)
        collected = time.perf_counter()
        self.watch.drawn(rollouts.prompts)
        self.watch.collected(rollouts)
        # The old policy is the one at hand, unless others drew and no correction leads from them to it.
        own = not rollouts.behind or self.recipe.loss.importance is not None
        scores = self._recompute_logprobs(rollouts, self._controls(step))
        group_advantages, measured = self.estimator.assign(rollouts.groups, scores, self.objective.kl_coefs)
        batch = make_batch(rollouts.groups, group_advantages, scores, self.recipe.loss.top_entropy, recomputed=own)
        self.objective.begin()
        minibatches = self._minibatches(batch, step)
        self.watch.group_advantages(rollouts.groups, group_advantages, batch, minibatches, measured)
        updates: list[_Update] = []
        for i, samples in enumerate(minibatches):
            updates.append(self._update(step, samples, i, rollouts, on_policy=own and i == 0))
            if self.trust_region and self.trust_region.spent:
                self.updater.leave_out(len(minibatches) - len(updates))
                self.watch.passed(len(minibatches) - len(updates))
                break
        updated = _over([u.values for u in updates])
        values = {**rollouts.values, **batch.values, **measured, **updated, **self.objective.coefficients()}
        self.objective.control(values)
        seconds = _timings(rollouts, collected - start, time.perf_counter() - start, ahead=self.recipe.ahead > 0)
        values |= logged_metrics(rollouts.tallies, {*values, *seconds, *OWN})
        # Times differ from process to process: all observers see those of the first, and decide alike.
        record = self.ranks.gathered(StepRecord(step, "grpo", values, seconds))[0]
        events = [*self.unrated.look(step, rollouts.tallies), *(e for u in updates for e in u.events)]
        events += self.watch.events(step)
        result = StepResult(record, rollouts.groups, batch.advantages, events)
        stop = any(u.stop for u in updates) or any(e.action == "stop" and e.code == UNRATED for e in events)
        return self._observe(result, rollouts.drew, stop=stop)

    def state(self) -> dict[str, Any]:
        """Coefficients and running statistics, as JSON."""
        state: dict[str, Any] = {"coefficients": self.objective.state(), "moments": self.estimator.state()}
        state |= {"unrated": self.unrated.streaks} if self.unrated.streaks else {}
        state |= {"guard": self.trust_region.state()} if self.trust_region else {}
        pending = self.batches.pending()
        return state | ({"pending": pending} if pending else {})

    def load_state(self, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        """Restore :meth:`state` and :meth:`tensors`."""
        self.objective.load_state(state["coefficients"])
        self.estimator.load_state(state["moments"])
        self.unrated.streaks = dict(state.get("unrated", {}))
        self.merger.load_state_dict(tensors["merger"])
        if self.trust_region and "guard" in state:
            self.trust_region.load_state(state["guard"])
            self.trust_region.load_tensors(tensors.get("guard", []))
        self.batches.resume(state.get("pending", {}), tensors.get("pending", []))

    def recall(self, records: Iterable[StepRecord]) -> None:
        """Show a guard what it had seen before the run was interrupted."""
        if self.trust_region is not None:
            for record in records:
                self.trust_region.guard.recall(record)

    def upcoming(self) -> list[Prompt]:
        """The prompts that the next step's batch is drawn from, before any gives way to others."""
        return self.batches.upcoming()

    def begins(self, step: int) -> dict[str, Any]:
        """What a step begins with besides weights, optimizer and prompts, as JSON, to tell whether a run goes on."""
        return {
            "seed": rollout_seed(self.seed, step),
            "sampling": self.recipe.sampling.at(step - 1, self.recipe.steps).model_dump(mode="json"),
            "generator": self.merger.state_dict()["generator"].tolist(),
            "statistics": self.state() | {"pending": self.batches.pending()},
        }

    def tensors(self) -> dict[str, Any]:
        """What a checkpoint holds of this stage besides weights and optimizer."""
        kept = self.trust_region.tensors() if self.trust_region else []
        weights = {"guard": kept, "pending": self.batches.tensors()}
        return {"merger": self.merger.state_dict(), **{name: found for name, found in weights.items() if found}}

    def _controls(self, step: int) -> TrainSampling:
        """The sampling controls of a step; temperature 0 stays greedy."""
        controls = self.recipe.sampling.at(step - 1, self.recipe.steps)
        return controls.model_copy(update={"temperature": controls.temperature * self.objective.knobs.temperature})

    def _recompute_logprobs(self, rollouts: Collected, controls: TrainSampling) -> Scores | None:
        """Score the batch's tokens beforehand, where an estimator or a mask must see all of them first.

        Also where a sampler tells log-probabilities of its draws alone, and those are not the policy's.
        """
        foreign = distorts(controls) and not self.batches.capabilities.policy_logprobs
        if not wanted(self.recipe) and not foreign:
            return None
        reference = self.recipe.kl.where == "reward" and self.policy.keeps_reference
        tokens, temperature = self.recipe.tokens_per_microbatch, rollouts.temperature or 1.0
        scores = recompute_logprobs(
            self.policy, rollouts.groups, temperature, tokens, reference=reference, ranks=self.ranks
        )
        if foreign:
            rollouts.groups = with_own_logprobs(rollouts.groups, scores)
        return scores if wanted(self.recipe) else None

    def _minibatches(self, batch: Batch, step: int) -> list[list[Sample]]:
        """Deal the groups into one mini-batch an update, those of each task evenly; later epochs in a new order."""
        tasks = [group[0].task if group else "" for group in batch.groups]
        minibatches = []
        for epoch in range(self.recipe.epochs):
            order = torch.arange(len(batch.groups))
            if epoch:
                generator = torch.Generator().manual_seed(derive(self.seed, "deal", step, epoch))
                order = order[torch.randperm(len(order), generator=generator)]
            dealt = _deal(order.tolist(), tasks, self.recipe.updates_per_batch)
            minibatches += [[sample for i in members for sample in batch.groups[i]] for members in dealt]
        return minibatches

    def _update(
        self, step: int, samples: Sequence[Sample], index: int, rollouts: Collected, *, on_policy: bool
    ) -> _Update:
        """One optimizer step: terms, gradient, observers, weights."""
        seed = derive(self.seed, "update", step, index)
        temperature, behind = rollouts.temperature, rollouts.behind > 0
        plan = self.objective.plan(samples, temperature=temperature, on_policy=on_policy, seed=seed, behind=behind)
        values: dict[str, float] = {
            metric.LOSS: 0.0,
            metric.GRAD_NORM: 0.0,
            metric.LEARNING_RATE: self.updater.learning_rate,
        }
        update = _Update(values)
        if not plan.samples:
            self.updater.clear()
            self.watch.passed()
            return update
        audit = self.audits.begin(plan, self.updater.done, seed)
        auditor = audit.auditor if audit else None
        broken = any(self.ranks.gathered(self._accumulate(plan, auditor)))
        self.objective.sums = self.ranks.totals(self.objective.sums)
        merged = self.merger.finish()
        values |= self.objective.values(plan.shares) | dict(merged.metrics)
        update.events += switch_events(step, merged, self.recipe.merge)
        self.watch.gradient(merged)
        values[metric.GRAD_NORM] = math.nan if broken else self.updater.clip()
        self.watch.clipped(values[metric.GRAD_NORM])
        if not math.isfinite(values[metric.GRAD_NORM]):
            update.events.append(lost_gradient(step, values))
            update.skipped = True
        elif audit is not None:
            audited, told = self.audits.finish(audit, step, self.updater.optimizer)
            values |= audited
            update.events += told
        strengths = self.audits.strengths if audit is not None and not update.skipped else {}
        self.watch.numbers(values, self.objective, plan, strengths)
        for observer in self.observers:
            for decision in observer.before_update(StepRecord(step, "grpo", values)):
                update.events.append(decision.event)
                update.skipped |= decision.kind == "skip"
                update.stop |= decision.kind == "stop"
        if update.skipped:
            self.updater.clear()
        elif self.trust_region:
            update.events += self.trust_region.step(step, plan, later=index > 0)
            values |= self.trust_region.values
        else:
            self.updater.step()
        self.watch.updated(values, skipped=update.skipped)
        return update

    def _accumulate(self, plan: Plan, auditor: Auditor | None) -> bool:
        """Run the forward and backward passes of an update; returns whether one broke."""
        tokens, policy = self.recipe.tokens_per_microbatch, self.policy
        if policy.total is not None:
            return accumulate_in_step(policy, self.objective, plan, tokens, self.merger, auditor, self.ranks)
        return accumulate(policy, self.objective, self.ranks.own(plan), tokens, self.merger, auditor)

    def _observe(self, result: StepResult, drew: Sequence[Tensor] | None, *, stop: bool) -> StepResult:
        result.stop = stop
        for observer in self.observers:
            for decision in observer.after_update(result.record):
                result.events.append(decision.event)
                result.stop |= decision.kind == "stop"
                if decision.kind == "rollback" and self.trust_region:
                    self.trust_region.restore()
                    self.watch.restarted()
                    self.batches.forget()
        if self.trust_region:
            self.trust_region.keep(drew)
        self.policy.version = self.updater.done
        return result


@dataclass(slots=True)
class _Update:
    """One optimizer step's numbers."""

    values: dict[str, float]
    events: list[Event] = field(default_factory=list)
    skipped: bool = False
    stop: bool = False


def _deal(order: Sequence[int], tasks: Sequence[str], parts: int) -> list[list[int]]:
    """Deal groups into parts, each of which gets as many of every task, within one, and keeps their order.

    Args:
        order: Indices of the groups.
        tasks: Task of each group, by index.
        parts: How many.
    """
    by_task = sorted(range(len(order)), key=lambda place: tasks[order[place]])
    return [[order[place] for place in sorted(by_task[part::parts])] for part in range(parts)]


def _over(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean of each metric over the updates that have it; the largest of a ``/max``, the smallest of a ``/min``."""
    names = dict.fromkeys(name for row in updates for name in row)
    columns = {name: [row[name] for row in updates if name in row] for name in names}
    ends = {name: max if name.endswith("/max") else min if name.endswith("/min") else fmean for name in names}
    return {name: ends[name](column) for name, column in columns.items()}


def _timings(rollouts: Collected, collected: float, total: float, *, ahead: bool) -> dict[str, float]:
    spent = {
        metric.TIME_SAMPLE: rollouts.sample_s,
        metric.TIME_SCORE: rollouts.score_s,
        metric.TIME_ENV: rollouts.env_s,
    }
    known = {part: seconds for part, seconds in spent.items() if seconds}
    known |= rollouts.timings | ({metric.TIME_WAIT: collected} if ahead else {})
    return {**known, metric.TIME_TRAIN: total - collected, metric.STEP_TIME: total}
