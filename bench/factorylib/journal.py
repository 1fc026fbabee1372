"""A simulated run from its first step to its last, written down as a trainer would log it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from factorylib.plans import Plan
from factorylib.simulate import Batch, Trainer
from factorylib.worlds import Floats, pays

RATE_UNIT = 5e-5
"""Learning rate that is logged for a simulated one of 1: tables take so much larger ones than networks."""
EVALUATIONS = 12
"""Held-out evaluations of a run."""


@dataclass(slots=True)
class Run:
    """What a simulated run left.

    Attributes:
        rows: ``(step, readings)`` under canonical names.
        true: Mean true reward of each step, which only the simulation knows.
        top: Largest true reward.
    """

    rows: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    true: list[float] = field(default_factory=list)
    top: float = 1.0


def simulate(plan: Plan) -> Run:
    """Make one run."""
    trainer = Trainer(plan)
    run = Run(top=plan.family.top)
    remembers = plan.lag or plan.never_synced
    every = max(1, plan.steps // EVALUATIONS)
    for step in range(plan.steps):
        if remembers:
            trainer.past.append(trainer.logits(np.arange(plan.prompts)))
            trainer.past = trainer.past[:1] + trainer.past[1:][-plan.lag - 1 :]
        batch = trainer.collect(step)
        row = _sampled(plan, batch, step, trainer)
        before = trainer.own.copy(), trainer.shared.copy()
        row |= trainer.update(batch, step)
        broken = step >= plan.nan_from * plan.steps
        if broken:
            trainer.own, trainer.shared = before
            row |= {"kl": np.nan} if plan.nan_loss_only else {"loss": np.nan, "grad_norm": np.nan}
        if step % every == 0:
            row["eval/score"] = _held_out(trainer, step)
        run.rows.append((float(step + 1), row))
        run.true.append(float(batch.true.mean()))
    return run


def _sampled(plan: Plan, batch: Batch, step: int, trainer: Trainer) -> dict[str, float]:
    """Readings of the rollouts."""
    paid, rng = batch.paid, trainer.rng
    lengths = (batch.answers.mask * trainer.phrases[batch.answers.tokens]).sum(-1)
    row = {
        "reward": float(paid.mean()),
        "reward_std": float(paid.std(1, ddof=1).mean()),
        "frac_reward_zero_std": float((np.ptp(paid, axis=1) < 1e-9).mean()),
        "reward/max": float(paid.max()),
        "reward/min": float(paid.min()),
        "learning_rate": trainer.rate(step) * RATE_UNIT,
        "completions/mean_length": float(max(1.0, lengths.mean())),
        "completions/max_length": float(np.ceil(lengths.max())),
        "completions/min_length": float(max(1.0, np.floor(lengths.min()))),
        "completions/clipped_ratio": float(batch.cut.mean()),
        "step_time": float(10 + 0.02 * lengths.mean()) * float(rng.uniform(0.93, 1.07)),
    }
    if trainer.faulty(step):
        row["step_time"] /= plan.slow_factor
    if plan.engine_noise or plan.sampler_noise or plan.lag or plan.never_synced or plan.sampler_temperature != 1:
        row |= _engines(plan, batch, rng)
    if plan.errors:
        row["reward/errors"] = plan.errors * trainer.faulty(step) * float(rng.uniform(0.8, 1.2))
    if len(batch.parts) > 1:
        row |= {f"rewards/{name}/mean": float(value.mean()) for name, value in batch.parts.items()}
    ended = batch.cut < 0.5
    if trainer.world.ends and ended.any():
        row["completions/mean_terminated_length"] = float(lengths[ended].mean())
    return row


def _engines(plan: Plan, batch: Batch, rng: np.random.Generator) -> Mapping[str, float]:
    """How far the sampler's log-probabilities lie from the trainer's."""
    gap: Floats = batch.old_logp - batch.sampled_logp
    noisy = gap + plan.engine_noise * rng.normal(0, 1, gap.shape)
    used = batch.answers.mask > 0
    return {
        "sampling/sampling_logp_difference/mean": float(np.abs(noisy[used]).mean()),
        "sampling/sampling_logp_difference/max": float(np.abs(noisy[used]).max()),
        "sampling/importance_sampling_ratio/mean": float(np.exp(np.clip(noisy[used], -3, np.log(2))).mean()),
        "mismatch/kl": float((np.exp(np.clip(noisy[used], -9, 9)) - 1 - noisy[used]).mean()),
    }


def _held_out(trainer: Trainer, step: int) -> float:
    """True reward on the prompts of a run with the policy as it is, in answers of their own."""
    prompts = np.arange(trainer.plan.prompts)
    state = trainer.rng.bit_generator.state
    answers, _, _ = trainer.sample(prompts, step)
    trainer.rng.bit_generator.state = state
    true = sum(pays(trainer.world, answers).values(), np.zeros(answers.lengths.shape))
    return float(true.mean())
