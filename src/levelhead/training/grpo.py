"""Group-relative policy optimisation: one step, readable from top to bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from levelhead.objective.audit import Auditor
from levelhead.objective.surgery import ConflictMonitor, GradientMerger
from levelhead.policy.policy import Policy
from levelhead.recipe.training import Grpo
from levelhead.records import Event, Group, Observer, StepRecord
from levelhead.rollout.base import Sampler
from levelhead.rollout.draws import derive
from levelhead.training.batch import Batch, Sample, make_batch
from levelhead.training.collect import Collected, Collector, rollout_seed
from levelhead.training.objective import ON_POLICY, Objective
from levelhead.training.optim import Updater
from levelhead.training.stream import PromptStream


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


class GrpoTrainer:
    """Draws, scores, and updates.

    Args:
        policy: What is trained.
        sampler: Draws rollouts.
        collector: Scores them.
        stream: Training prompts.
        objective: Terms and their coefficients.
        updater: The optimizer.
        recipe: The ``grpo`` section.
        seed: Of every draw.
        observers: Shown every record; the guard is one.
    """

    def __init__(
        self,
        policy: Policy,
        sampler: Sampler,
        collector: Collector,
        stream: PromptStream,
        objective: Objective,
        updater: Updater,
        recipe: Grpo,
        seed: int,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.policy, self.sampler, self.collector = policy, sampler, collector
        self.stream, self.objective, self.updater = stream, objective, updater
        self.recipe, self.seed, self.observers = recipe, seed, observers
        self.merger = make_merger(policy, recipe, seed)

    def step(self, step: int) -> StepResult:
        """Do rollout batch ``step``, counted from 1, with all its updates."""
        start = time.perf_counter()
        prompts = self.stream.take(self.recipe.batch_size // self.recipe.group_size)
        controls = self.recipe.sampling.at(step - 1, self.recipe.steps)
        rollouts = self.collector.collect(prompts, self.recipe.group_size, controls, rollout_seed(self.seed, step))
        batch = make_batch(rollouts.groups, self.recipe.advantage)
        trained = time.perf_counter()
        updates = [self._update(step, samples, i) for i, samples in enumerate(self._minibatches(batch, step))]
        self.sampler.sync(self.policy, self.updater.done)
        values = {**batch.values, **_mean([u.values for u in updates]), **self.objective.coefficients()}
        values["dropped_rollouts"] = float(rollouts.dropped)
        self.objective.control(values)
        record = StepRecord(step, "grpo", values, _timings(rollouts, trained - start, time.perf_counter() - start))
        result = StepResult(record, rollouts.groups, batch.advantages, [e for u in updates for e in u.events])
        return self._observe(result, stop=any(u.stop for u in updates))

    def _minibatches(self, batch: Batch, step: int) -> list[list[Sample]]:
        """Deal the groups into one hand an update; later epochs in a new order."""
        hands = []
        for epoch in range(self.recipe.epochs):
            order = torch.arange(len(batch.groups))
            if epoch:
                generator = torch.Generator().manual_seed(derive(self.seed, "deal", step, epoch))
                order = order[torch.randperm(len(order), generator=generator)]
            for part in range(self.recipe.updates_per_batch):
                chosen = order[part :: self.recipe.updates_per_batch].tolist()
                hands.append([sample for i in chosen for sample in batch.groups[i]])
        return hands

    def _update(self, step: int, samples: Sequence[Sample], index: int) -> _Update:
        """One optimizer step: terms, gradient, observers, weights."""
        computed = [s for s in samples if self.objective.computes(s)]
        shares = self.objective.shares(samples)
        values: dict[str, float] = {"loss": 0.0, "grad_norm": 0.0, "learning_rate": self.updater.learning_rate}
        if not computed:
            self.updater.clear()
            return _Update(values)
        old = ON_POLICY if index == 0 else "sampler"
        auditor = Auditor(self.policy.parameters) if self._audits() else None
        with self.policy.training():
            for task in shares:  # a task at a time: its own backward pass then never runs through another's rows
                members = [s for s in computed if s.task == task]
                for micro in self.policy.pack([s.sequence for s in members], self.recipe.tokens_per_microbatch):
                    terms = self.objective.terms(self.policy, micro, members, shares, old)
                    if auditor is not None:
                        auditor.add(terms)
                    self.merger.add(terms)
        merged = self.merger.finish()
        values |= self.objective.values(shares) | dict(merged.metrics)
        values["grad_norm"] = self.updater.clip()
        update = _Update(values)
        if not math.isfinite(values["grad_norm"]):
            update.skip(step, "nonfinite", "the gradient is not finite; the update was skipped", values)
        elif auditor is not None:
            report = auditor.finish(self.updater.optimizer)
            values |= report.metrics
            if self.recipe.audit.on_error == "stop":
                report.check()
            update.events += [Event(step, "term-sign", "critical", line, "warn") for line in report.errors]
        for observer in self.observers:
            for decision in observer.before_update(StepRecord(step, "grpo", values)):
                update.events.append(decision.event)
                update.skipped |= decision.kind == "skip"
                update.stop |= decision.kind == "stop"
        if update.skipped:
            self.updater.clear()
        else:
            self.updater.step()
        return update

    def _audits(self) -> bool:
        audit, done = self.recipe.audit, self.updater.done
        return done < audit.first or (audit.every > 0 and done % audit.every == 0)

    def _observe(self, result: StepResult, *, stop: bool) -> StepResult:
        result.stop = stop
        for observer in self.observers:
            for decision in observer.after_update(result.record):
                result.events.append(decision.event)
                result.stop |= decision.kind == "stop"
        return result


@dataclass(slots=True)
class _Update:
    """One optimizer step's numbers."""

    values: dict[str, float]
    events: list[Event] = field(default_factory=list)
    skipped: bool = False
    stop: bool = False

    def skip(self, step: int, code: str, message: str, evidence: Mapping[str, float]) -> None:
        self.skipped = True
        norm = str(evidence["grad_norm"])
        self.events.append(Event(step, code, "warning", message, "skip", {"grad_norm": norm, "loss": evidence["loss"]}))


def make_merger(policy: Policy, recipe: Grpo, seed: int) -> GradientMerger:
    """The gradient merger that a recipe asks for."""
    merge = recipe.merge
    monitor = ConflictMonitor(every=merge.monitor_every, switch_after=merge.switch_after)
    return GradientMerger(
        policy.parameters,
        merge.kind,
        c=merge.c,
        memory=merge.memory,
        scale=merge.scale,
        monitor=monitor,
        switch_to=merge.switch_to,
        seed=derive(seed, "merge"),
    )


def _mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean of each metric over the updates that have it."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row[name] for row in rows if name in row] for name in names}
    return {name: math.fsum(column) / len(column) for name, column in columns.items()}


def _timings(rollouts: Collected, collected: float, total: float) -> dict[str, float]:
    return {
        "time/sample": rollouts.sample_s,
        "time/score": rollouts.score_s,
        "time/train": total - collected,
        "step_time": total,
    }
