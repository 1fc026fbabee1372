"""The objective of the reinforcement stage: plans an update, runs the forward passes and builds their terms."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from levelhead.objective.terms import Term
from levelhead.policy.packing import MicroBatch
from levelhead.policy.policy import Policy
from levelhead.policy.rounding import LOGITS, tolerance
from levelhead.recipe.objective import KlController, make_task_weights
from levelhead.recipe.training import Grpo
from levelhead.tasks.base import Task
from levelhead.training.batch import Sample
from levelhead.training.coefficients import Coefficients, WeightsInForce, facts_of
from levelhead.training.plan import Plan, Share
from levelhead.training.terms import TermConfig, build_terms, make_term_batch
from levelhead.training.update_metrics import ROUNDING, Statistic, UpdateMetrics


class Objective:
    """What GRPO maximises: for each task the policy surrogate, minus the KL penalty, plus the entropy bonus.

    Args:
        config: The ``grpo`` section.
        weights: Weight of each task in the recipe.
        kl: KL coefficient of each task, ``None`` for the section's; in the recipe's order.
        controllers: What moves the KL coefficient of each task; the section's where none is given.
        tasks: By name, for what they declare of their rewards.

    Raises:
        ValueError: Settings of a controller do not fit each other.
        InputError: A controller, or a rule for the weights, of the user's own is missing, or does not fit.
    """

    def __init__(
        self,
        config: Grpo,
        weights: Mapping[str, float],
        kl: Mapping[str, float | None],
        controllers: Mapping[str, KlController | None] | None = None,
        tasks: Mapping[str, Task] | None = None,
    ) -> None:
        self.config = config
        self.loss = config.loss.make()
        task_weights = WeightsInForce(make_task_weights(config.task_weights), facts_of(weights, tasks))
        self.coefficients = Coefficients(config, kl, controllers, task_weights)
        self.references = ReferenceCache(enabled=config.epochs > 1)

    def with_own_references(self) -> Self:
        """Return the same objective with an empty cache of reference scores, for passes beside the run's own."""
        other = copy.copy(self)
        other.references = ReferenceCache(enabled=False)
        return other

    def plan(
        self, samples: Sequence[Sample], *, temperature: float, at_old_policy: bool, seed: int, behind: bool = False
    ) -> Plan:
        """Lay out an update; zero-std groups count in the denominators, though they need no forward pass.

        Args:
            samples: All samples of the update.
            temperature: Sampling temperature; 0, greedy, is scored at 1.
            at_old_policy: Whether the current policy is the old one.
            seed: Seed of losses that draw.
            behind: Whether older weights sampled the rollouts.
        """
        config = self.config
        shares: dict[str, Share] = {}
        computed: dict[str, list[Sample]] = {}
        for task, weight in self.coefficients.task_weights.weights.items():
            members = [s for s in samples if s.task == task]
            counted = [s for s in members if not (config.mask_truncated and s.truncated)]
            tokens = sum(s.weight * len(s.logprobs) for s in counted)
            rollouts = sum(s.share for s in counted)
            denominator = tokens if config.loss.aggregation == "token_mean" else rollouts
            # A sample without signal is read where KL or entropy need its tokens.
            always = self.coefficients.entropy > 0
            forwarded = [s for s in members if always or s.has_signal or self._has_kl_term(s.task)]
            forwarded_tokens = sum(s.weight * len(s.logprobs) for s in forwarded)
            if members:
                shares[task] = Share(weight, max(denominator, 1e-9), max(forwarded_tokens, 1e-9))
            if forwarded:
                computed[task] = forwarded
        present = sum(share.weight for share in shares.values())
        shares = {task: replace(share, weight=share.weight / present) for task, share in shares.items()}
        generator = torch.Generator().manual_seed(seed)
        return Plan(computed, shares, temperature or 1.0, at_old_policy, generator, behind)

    def terms(
        self, policy: Policy, micro: MicroBatch, task: str, plan: Plan, metrics: UpdateMetrics | None = None
    ) -> list[Term]:
        """Score a micro-batch of one task and return its terms.

        Args:
            policy: With gradient.
            micro: Packed from ``plan.samples[task]``.
            task: Its task.
            plan: Plan of the update.
            metrics: Takes the statistics.
        """
        samples = [plan.samples[task][i] for i in micro.indices]
        stats = policy.score(micro, plan.temperature)
        reference = None
        if self._has_kl_term(task) and policy.keeps_reference:
            reference = micro.pad(self.references.logp(policy, micro, samples, plan.temperature))
        logp_nt, entropy_nt = micro.pad(stats.logp), micro.pad(stats.entropy)
        mask_nt = micro.mask().to(logp_nt.device)
        batch = make_term_batch(samples, mask_nt, logp_nt, entropy_nt, reference, plan, self.config)
        coefficients, share = self.coefficients, plan.shares[task]
        loss = self.loss.with_clip_scaled(coefficients.overrides.clip)
        kl, entropy = coefficients.kl[task], coefficients.entropy
        terms, statistics = build_terms(batch, TermConfig(self.config, loss, share, kl, entropy, plan.generator))
        if plan.at_old_policy and not plan.behind:
            statistics.append(Statistic(ROUNDING, tolerance(policy, LOGITS).mean, "max"))
        if metrics is not None:
            metrics.add(torch.isfinite(stats.logp.detach()).all().to(stats.logp.dtype), statistics)
        return terms

    def _has_kl_term(self, task: str) -> bool:
        return self.config.kl.where == "loss" and self.coefficients.measures_kl(task)


class ReferenceCache:
    """Log-probabilities under the reference, so that later epochs over a batch need no second forward pass.

    Args:
        enabled: Whether to remember any.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._cached: dict[int, tuple[Sample, Tensor]] = {}

    def clear(self) -> None:
        """Forget the log-probabilities of the last batch."""
        self._cached = {}

    def logp(self, policy: Policy, micro: MicroBatch, samples: Sequence[Sample], temperature: float) -> Tensor:
        """Return (m,) log-probabilities of a micro-batch's completion tokens under the reference."""
        cached = [self._cached[id(s)][1] for s in samples if id(s) in self._cached]
        if len(cached) == len(samples):
            return torch.cat(cached)
        logp = policy.reference_logp(micro, temperature)
        if self._enabled:
            parts = logp.split(list(micro.lengths))
            self._cached |= {id(s): (s, part) for s, part in zip(samples, parts, strict=True)}
        return logp
