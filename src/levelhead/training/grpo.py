"""Group-relative policy optimisation (Shao et al. 2024, arXiv:2402.03300): one step, to be read beside the paper.

For each prompt q the old policy samples a group of G outputs o_1 .. o_G, each is given a reward, and the advantage of
an output is its reward compared with those of its group.  One or more optimizer steps then maximise, over the tokens,

    min(r A, clip(r, 1 - eps, 1 + eps) A) - beta KL(policy || reference) + c entropy,      r = policy / old policy

with every symbol a variant of the recipe: the estimator of A, the surrogate, the KL estimator, beta and c with their
controllers.  Several tasks share the policy: each has its own terms, and their gradients are merged.

There is no value network.  On the first update of a batch that the current weights sampled, the old policy is the
current one and r is 1.

To read on, in this order: in this folder group_queue, advantages, batch, objective, plan, terms, passes; then
levelhead/objective/terms and aggregation/merger; here again optim, watch, trust_region; then guard/guard.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from levelhead import metrics as metric
from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import TrainSampling
from levelhead.recipe.training import Grpo
from levelhead.records import Observer, Prompt, StepRecord
from levelhead.rollout.draws import derive
from levelhead.tasks.metering import logged_metrics
from levelhead.training.advantages import AdvantageEstimator
from levelhead.training.batch import Sample, deal_minibatches, make_batch
from levelhead.training.collect import Collector, rollout_seed
from levelhead.training.collected import Collected
from levelhead.training.fidelity import HeldWeights, RecordedLogprobs
from levelhead.training.group_queue import GroupQueue
from levelhead.training.group_sampler import SamplingSetup
from levelhead.training.objective import Objective
from levelhead.training.optim import Updater, lost_gradient
from levelhead.training.passes import accumulate, make_merger, switch_events
from levelhead.training.ranks import Ranks
from levelhead.training.recompute import Recomputed, distorts, needs_recompute, recompute_logprobs, with_own_logprobs
from levelhead.training.signs import UpdateAudits
from levelhead.training.stateful import Stateful
from levelhead.training.step_result import NON_METRIC_KEYS, StepResult, Update, over_updates, step_timings
from levelhead.training.stream import Stream
from levelhead.training.trust_region import TrustRegion, find_guard
from levelhead.training.unrated import CODE as UNRATED
from levelhead.training.unrated import UnratedWatch
from levelhead.training.update_metrics import UpdateMetrics, summarise
from levelhead.training.watch import BatchWatch, Watch
from levelhead.training.watcher import ObserverWatcher


class GrpoTrainer:
    """Samples rollouts, recomputed them, and updates the policy.

    Args:
        policy: What is trained.
        collector: Samples and recomputed rollouts.
        stream: Chooses training prompts.
        objective: Terms and their coefficients.
        updater: The optimizer.
        config: The ``grpo`` section.
        seed: Seed of all sampling.
        observers: Shown every record; a guard is one.
        estimator: Rewards to advantages; without shaping unless given.
        ranks: The processes that share the work.
        batch_watch: Shown what was sampled, beside the trainer's own look at failed rewards.
    """

    def __init__(
        self,
        policy: Policy,
        collector: Collector,
        stream: Stream,
        objective: Objective,
        updater: Updater,
        config: Grpo,
        seed: int,
        observers: Sequence[Observer] = (),
        estimator: AdvantageEstimator | None = None,
        ranks: Ranks | None = None,
        batch_watch: BatchWatch | None = None,
    ) -> None:
        self.ranks, self.config, self.seed = ranks or Ranks(), config, seed
        self.policy, self.objective, self.updater = policy, objective, updater
        self.policy.version = updater.done
        self.estimator = estimator or AdvantageEstimator(config, {})
        self.merger = make_merger(policy, config, seed, tuple(objective.coefficients.kl), self.ranks)
        self.unrated = UnratedWatch()
        self.watch = self._watched_by(observers, batch_watch or BatchWatch())
        # The weights that sampled a batch may have to be gone back to.
        keeps = self.watch.region is not None and self.watch.region.guard.corrects
        setup = SamplingSetup(stream, collector, config, seed, policy, self._controls, self.ranks, keeps=keeps)
        self.queue = GroupQueue(setup)

    def step(self, step: int) -> StepResult:
        """Do rollout batch ``step``, counted from 1, with all its updates."""
        start = time.perf_counter()
        coefficients = self.objective.coefficients
        self.watch.begin()

        # Sample a group of rollouts for each prompt, and score them.
        self.policy.sync_sampler()
        rollouts = self.queue.next(step, self._controls(step), coefficients.overrides.redraws)
        waited = time.perf_counter() - start
        events = self.watch.sampled(step, rollouts)

        # Compare each reward with those of its group.
        recomputed = self._recompute(rollouts, self._controls(step))
        group_advantages, measured = self.estimator.assign(rollouts.groups, recomputed, coefficients.kl)
        # The old policy is the current one, unless older weights sampled and no correction leads from them to it.
        at_old_policy = not rollouts.behind or self.config.loss.importance is not None
        top_entropy = self.config.loss.top_entropy
        batch = make_batch(
            rollouts.groups,
            group_advantages,
            recomputed,
            top_entropy,
            old_from_recomputed=at_old_policy,
            sum_turns=self.config.loss.turns == "sum",
        )

        # Take one optimizer step a mini-batch.
        self.objective.references.clear()
        minibatches = deal_minibatches(batch, self.config, step, self.seed)
        updates: list[Update] = []
        for i, samples in enumerate(minibatches):
            update = self._gradient(step, samples, i, rollouts, at_old_policy=at_old_policy and i == 0)
            if update.plan.samples and self.watch.before(update):
                self.updater.step()
                self.watch.after(update)
                update.values |= self.updater.visible
            else:  # skipped, or every group is solved or failed by all its rollouts: there is nothing to learn
                self.updater.finish()
            updates.append(update)
            if self.watch.spent:
                self.updater.skip_updates(len(minibatches) - len(updates))
                break

        # Let the controllers move the coefficients, and write the step down.
        values = {**rollouts.values, **batch.values, **measured, **over_updates(updates), **coefficients.metrics()}
        coefficients.update(values)
        seconds = step_timings(rollouts, waited, time.perf_counter() - start, ahead=self.config.ahead > 0)
        values |= logged_metrics(rollouts.tallies, {*values, *seconds, *NON_METRIC_KEYS})
        events += [event for update in updates for event in update.events]
        # Times differ from process to process: all watchers see those of the first, and decide alike.
        record = self.ranks.gathered(StepRecord(step, "grpo", values, seconds))[0]
        seen, stop, went_back = self.watch.recorded(record, rollouts.sampler_weights)
        if went_back:
            self.queue.forget()
        self.policy.version = self.updater.done
        stop |= any(u.stop for u in updates) or any(e.action == "stop" and e.code == UNRATED for e in events)
        return StepResult(record, rollouts.groups, batch.advantages, [*events, *seen], stop)

    def _gradient(
        self, step: int, samples: Sequence[Sample], index: int, rollouts: Collected, *, at_old_policy: bool
    ) -> Update:
        """Leave the merged, clipped gradient of an update in ``p.grad``; none where it has nothing to compute."""
        seed = derive(self.seed, "update", step, index)
        temperature, behind = rollouts.temperature, rollouts.behind > 0
        plan = self.objective.plan(
            samples, temperature=temperature, at_old_policy=at_old_policy, seed=seed, behind=behind
        )
        values = {metric.LOSS: 0.0, metric.GRAD_NORM: 0.0, metric.LEARNING_RATE: self.updater.learning_rate}
        update = Update(step, plan, seed, index > 0, values)
        if not plan.samples:
            return update
        self.watch.planned(update)
        metrics, tokens = UpdateMetrics(), self.config.tokens_per_microbatch
        accumulate(self.policy, self.objective, plan, tokens, self.merger, metrics, self.watch.terms, self.ranks)
        own_sums = metrics.read()
        broken = any(self.ranks.gathered(metrics.broken))
        merged = self.merger.finish()
        values |= summarise(self.ranks.totals(own_sums), plan.shares) | dict(merged.metrics)
        update.events += switch_events(step, merged, self.config.merge)
        values[metric.GRAD_NORM] = math.nan if broken else self.updater.prepare()
        if not math.isfinite(values[metric.GRAD_NORM]):
            update.events.append(lost_gradient(step, values))
            update.skipped = True
        return update

    def _watched_by(self, observers: Sequence[Observer], batch_watch: BatchWatch) -> Watch:
        """All who look on: at failed rewards, at batches, at signs; and the observers, of which a guard corrects."""
        guard, tokens, region = find_guard(observers), self.config.tokens_per_microbatch, None
        if guard is not None:
            coefficients = self.objective.coefficients
            region = TrustRegion(self.policy, self.updater, coefficients, guard, tokens, self.ranks)
        audits = UpdateAudits(self.policy, self.objective, self.updater, self.config, self.merger, self.ranks)
        shown = [region if region and observer is guard else ObserverWatcher(observer) for observer in observers]
        faithful = [RecordedLogprobs(self.policy, self.config), HeldWeights(self.policy)]
        return Watch([self.unrated, batch_watch, audits, *shown, *faithful], region)

    def _recompute(self, rollouts: Collected, controls: TrainSampling) -> Recomputed | None:
        """Score the batch before its first update, where an estimator or a mask must see all of its tokens.

        Also where a sampler tells log-probabilities of its draws alone, and those are not the policy's.
        """
        foreign = distorts(controls) and not self.queue.capabilities.policy_logprobs
        if not needs_recompute(self.config) and not foreign:
            return None
        reference = self.config.kl.where == "reward" and self.policy.keeps_reference
        tokens, temperature = self.config.tokens_per_microbatch, rollouts.temperature or 1.0
        recomputed = recompute_logprobs(
            self.policy, rollouts.groups, temperature, tokens, reference=reference, ranks=self.ranks
        )
        if foreign:
            rollouts.groups = with_own_logprobs(rollouts.groups, recomputed)
        return recomputed if needs_recompute(self.config) else None

    def _controls(self, step: int) -> TrainSampling:
        """The sampling controls of a step; temperature 0 stays greedy."""
        controls = self.config.sampling.at(step - 1, self.config.steps)
        factor = self.objective.coefficients.overrides.temperature
        return controls.model_copy(update={"temperature": controls.temperature * factor})

    @property
    def position(self) -> Stateful:
        """The position in the prompts, for a checkpoint."""
        return self.queue.position

    @property
    def _parts(self) -> dict[str, Stateful]:
        """What a checkpoint holds of the trainer besides weights and optimizer, by name."""
        parts: dict[str, Stateful] = {
            "coefficients": self.objective.coefficients,
            "advantages": self.estimator,
            "unrated": self.unrated,
            "merger": self.merger,
            "batches": self.queue,
        }
        region = self.watch.region
        return parts | ({"trust_region": region} if region else {})

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every part, by name."""
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; a trust region that a state lacks begins afresh."""
        for name, part in self._parts.items():
            if name in state or name != "trust_region":
                part.load_state_dict(state[name])

    def upcoming(self) -> list[Prompt]:
        """The prompts of the next step, before any gives way to others."""
        return self.queue.upcoming()

    def begins(self, step: int) -> dict[str, Any]:
        """What a step begins with besides weights, optimizer and prompts, as JSON, to tell whether a run goes on."""
        region = self.watch.region
        statistics = {
            "coefficients": self.objective.coefficients.state_dict(),
            "moments": self.estimator.state_dict(),
            **({"unrated": self.unrated.streaks} if self.unrated.streaks else {}),
            **({"guard": region.guard.state_dict()} if region else {}),
            "pending": self.queue.pending,
        }
        name = "on_the_way" if self.queue.pending else "statistics"  # older checkpoints write down groups otherwise
        return {
            "seed": rollout_seed(self.seed, step),
            "sampling": self.config.sampling.at(step - 1, self.config.steps).model_dump(mode="json"),
            "generator": self.merger.state_dict()["generator"].tolist(),
            name: statistics,
        }
