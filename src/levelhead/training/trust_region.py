"""Does what the guard decides: measures each update on a probe, shortens it, and returns to kept weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from levelhead import metrics as metric
from levelhead.objective.numerics import local
from levelhead.policy.packing import MicroBatch
from levelhead.policy.policy import Policy
from levelhead.records import Change, Decision, Event, Guard, Observer
from levelhead.training.batch import Sample
from levelhead.training.coefficients import Coefficients
from levelhead.training.optim import Updater
from levelhead.training.plan import Plan
from levelhead.training.ranks import Ranks
from levelhead.training.step_result import Update
from levelhead.training.watcher import ObserverWatcher

LARGEST = 20.0
"""Change of a log-probability beyond which its exponential is not taken any further."""


@dataclass(frozen=True, slots=True)
class _ProbeStats:
    """What a policy says of the probe: (m,) log-probabilities and their mean entropy."""

    logp: Tensor
    entropy: float


@dataclass(frozen=True, slots=True)
class _Probe:
    """A few samples of an update, the weights that it starts from, and what these say of the samples."""

    samples: list[Sample]
    micros: list[MicroBatch]
    old: list[Tensor]
    before: _ProbeStats


class TrustRegion(ObserverWatcher):
    """Beside the updater the only one that touches weights: it puts back what an update took too far.

    In memory it holds, on the device, the trained weights that a step starts from, and in host memory those that the
    guard last thought worth keeping.

    Args:
        policy: What is trained.
        updater: Its optimizer.
        coefficients: Those that the guard may override.
        guard: Who decides.
        tokens: Budget of a forward pass.
        ranks: The processes of the run; they decide by what the first of them reads.
    """

    def __init__(
        self,
        policy: Policy,
        updater: Updater,
        coefficients: Coefficients,
        guard: Guard,
        tokens: int,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__(guard)
        self.guard, self._ranks = guard, ranks or Ranks()
        self._policy, self._updater, self._coefficients = policy, updater, coefficients
        self._tokens = tokens
        self._start: list[Tensor] | None = None
        self._snapshot: list[Tensor] | None = None
        self._probe: _Probe | None = None
        self.spent = False
        """Whether the guard wants no more updates from this batch."""

    def begin(self) -> None:
        """Note the weights that a step starts from, and override the coefficients as the guard wants them."""
        overrides = self.guard.overrides
        self._updater.factor = overrides.learning_rate
        self._coefficients.overrides = overrides
        self.spent = False
        if self.guard.corrects:
            self._start = self._copy()
            if self._snapshot is None:
                self._snapshot = [weight.cpu() for weight in self._start]

    def before(self, update: Update) -> Iterable[Decision]:
        """Ask the guard whether the update is to be taken; measure the policy on a few of its samples if so."""
        yield from super().before(update)
        self._probe = None  # the caller carries out each decision that is yielded above before it asks for more
        if not update.skipped:
            samples = self._probe_samples(update.plan)
            micros = self._policy.pack([sample.sequence for sample in samples], self._tokens)
            if micros:
                old, reading = self._before(later=update.later), self._read(micros, update.plan.temperature)
                self._probe = _Probe(samples, micros, old, reading)

    def after(self, update: Update) -> Iterable[Event]:
        """Measure the update, and take as much of it back as the guard asks for."""
        if (probe := self._probe) is None:
            return []
        before, later, temperature = probe.before, update.later, update.plan.temperature
        batch_start_logp = old_logp(probe.micros, probe.samples, before.logp) if later else before.logp
        whole = self._read(probe.micros, temperature)
        trials = [_change(1.0, before, whole, batch_start_logp, later=later)]
        events: list[Event] = []
        while (decision := self.guard.judge(update.step, trials)) is not None:
            scale = float(decision.params["scale"])
            self._blend(probe.old, scale / trials[-1].scale)
            after = self._read(probe.micros, temperature) if scale else before
            trials.append(_change(scale, before, after, batch_start_logp, later=later))
            events = [decision.event]
            self.spent |= bool(decision.params.get("spent"))
            if not scale:
                break
        update.values |= {
            metric.GUARD_KL: trials[0].kl,
            metric.GUARD_SCALE: trials[-1].scale,
            metric.GUARD_DRIFT: trials[-1].drift[1],
        }
        follows = alignment(probe.micros, [sample.centred_reward for sample in probe.samples], whole.logp - before.logp)
        if follows is not None:
            update.values[metric.GUARD_ALIGNMENT] = follows
        outcome = {"kl_after": trials[-1].kl, "drift_after": trials[-1].drift[1]}
        return [replace(e, evidence={**e.evidence, **outcome}) for e in events]

    def keep(self, sampler_weights: Sequence[Tensor] | None = None) -> None:
        """Remember the weights that sampled the batch, if the guard thinks them worth it.

        ``sampler_weights`` are these where the step did not start from them.
        """
        weights = self._start if sampler_weights is None else sampler_weights
        if self.guard.keeps and weights is not None:
            self._snapshot = [weight.cpu() for weight in weights]

    @torch.no_grad()
    def restore(self) -> None:
        """Go back to the kept weights; the optimizer's memory of the way from there is dropped."""
        if self._snapshot is not None:
            for parameter, weight in zip(self._updater.parameters, self._snapshot, strict=True):
                local(parameter).copy_(weight)
        self._updater.forget()

    def state_dict(self) -> dict[str, Any]:
        """State of the guard, and the weights to go back to."""
        return {"guard": self.guard.state_dict(), "weights": self._snapshot or []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self.guard.load_state_dict(state["guard"])
        self._snapshot = [weight.cpu() for weight in state["weights"]] or None

    def _probe_samples(self, plan: Plan) -> list[Sample]:
        """A few sequences spread evenly over the update's tasks and groups."""
        samples: list[Sample] = [sample for members in plan.samples.values() for sample in members]
        size = self.guard.probe_size(len(samples))
        return [samples[(2 * i + 1) * len(samples) // (2 * size)] for i in range(size)]

    @torch.no_grad()
    def _read(self, probe: Sequence[MicroBatch], temperature: float) -> _ProbeStats:
        stats = [self._policy.score(micro, temperature) for micro in probe]
        reading = _ProbeStats(torch.cat([s.logp for s in stats]), float(torch.cat([s.entropy for s in stats]).mean()))
        return reading if self._ranks.alone else self._agreed(reading)

    def _agreed(self, reading: _ProbeStats) -> _ProbeStats:
        """What the first process reads: a decision that hangs on the last bit must be the same everywhere."""
        first = self._ranks.gathered(replace(reading, logp=reading.logp.cpu()))[0]
        return replace(first, logp=first.logp.to(reading.logp.device))

    @torch.no_grad()
    def _blend(self, old: Sequence[Tensor], share: float) -> None:
        """Leave a share of the way from the old weights to today's; with none the old ones are back to the bit."""
        for parameter, before in zip(self._updater.parameters, old, strict=True):
            here = local(parameter)
            here.copy_(torch.lerp(before, here, share) if share else before)

    def _before(self, *, later: bool) -> list[Tensor]:
        """The weights that an update starts from; the batch's first one starts from those of the step."""
        if not self.guard.corrects:
            return []
        return self._copy() if later or self._start is None else self._start

    def _copy(self) -> list[Tensor]:
        return [local(parameter).detach().clone() for parameter in self._updater.parameters]


def find_guard(observers: Sequence[Observer]) -> Guard | None:
    """The first observer that also corrects."""
    return next((observer for observer in observers if isinstance(observer, Guard)), None)


def _change(scale: float, before: _ProbeStats, after: _ProbeStats, batch_start_logp: Tensor, *, later: bool) -> Change:
    """Measure a step, and with it the way from the policy whose (m,) log-probabilities ``batch_start_logp`` are."""
    kl = divergence(before.logp, after.logp)
    finite = math.isfinite(kl) and math.isfinite(after.entropy)
    most = float((after.logp - before.logp).abs().max()) if finite else math.inf
    drift = divergence(batch_start_logp, before.logp), divergence(batch_start_logp, after.logp)
    return Change(scale, kl if finite else math.inf, most, (before.entropy, after.entropy), later, drift)


def divergence(before: Tensor, after: Tensor) -> float:
    """Estimate the KL of one policy to another on sampled tokens.

    The mean of ``exp(d) - 1 - d``, d being the change of a sampled token's log-probability (Schulman 2020,
    "Approximating KL divergence", k3): never negative, and exact in expectation where the first policy sampled them.

    Args:
        before: (m,) log-probabilities of the first policy.
        after: (m,) those of the second.

    Returns:
        Nats a token; infinite where it cannot be told.
    """
    change = after - before
    kl = float((change.clamp(max=LARGEST).exp() - 1 - change).mean())
    return max(kl, 0.0) if math.isfinite(kl) else math.inf


def old_logp(probe: Sequence[MicroBatch], samples: Sequence[Sample], like: Tensor) -> Tensor:
    """(m,) log-probabilities that the batch's updates began with, in the order of the probe's tokens.

    Args:
        probe: Micro-batches of the samples' sequences.
        samples: Samples.
        like: (m,) what is now said of the same tokens.
    """
    order = [samples[index] for micro in probe for index in micro.indices]
    return torch.tensor([value for sample in order for value in sample.old_logprobs], device=like.device)


def alignment(probe: Sequence[MicroBatch], centred_rewards: Sequence[float], change: Tensor) -> float | None:
    """Cosine, over the probe, of centred reward and mean change of log-probability: whether an update followed rewards.

    Args:
        probe: Micro-batches of the probe's sequences.
        centred_rewards: Of each sequence: its reward less its group's mean.
        change: (m,) change of each token's log-probability, micro-batch after micro-batch.

    Returns:
        -1 to 1, above 0 in expectation for any update that climbs the reward; ``None`` where fewer than two
        sequences have a reward other than their group's mean, or nothing has moved, or the change is not finite.
    """
    order = [index for micro in probe for index in micro.indices]
    lengths = [length for micro in probe for length in micro.lengths]
    moved_n = torch.stack([part.mean() for part in change.split(lengths)]).double().cpu()
    centred_reward_n = torch.tensor([centred_rewards[index] for index in order], dtype=torch.float64)
    size = float(moved_n.norm() * centred_reward_n.norm())
    if int((centred_reward_n != 0).sum()) < 2 or not math.isfinite(size) or size == 0:
        return None
    return float(centred_reward_n @ moved_n) / size
