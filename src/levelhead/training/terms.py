"""The terms of one micro-batch as a pure function: policy surrogate, KL penalty and entropy bonus of a task.

Tensors carry their axes in their names: n sequences, t completion tokens, padded on the right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from levelhead import metrics as metric
from levelhead.objective import kl as kl_estimators
from levelhead.objective import losses
from levelhead.objective.losses import Loss
from levelhead.objective.masks import combine_weights
from levelhead.objective.terms import Term, scalar_loss
from levelhead.recipe.training import Grpo
from levelhead.training.batch import Sample
from levelhead.training.plan import Plan, Share
from levelhead.training.update_metrics import REFERENCE_GAP, Statistic, loss_statistics


@dataclass(frozen=True, slots=True)
class TermBatch:
    """The samples of a micro-batch of one task, and what policy and reference say of them, as tensors.

    Attributes:
        task: Name of the task.
        mask_nt: 1 on completion tokens, 0 on padding.
        logp_nt: Log-probabilities under the policy, with gradient.
        entropy_nt: Entropies of the policy's distributions in nats, with gradient.
        reference_logp_nt: Log-probabilities under the reference; ``None`` where the KL is not measured.
        sampled_logp_nt: Log-probabilities that the sampler recorded.
        old_logp_nt: Log-probabilities under the old policy; on policy those of the current one, without gradient.
        advantages: One a sequence, shape (n,), or one a token, shape (n, t).
        trained_n: Whether the surrogate of each sequence counts.
        trained_places_m: Flat positions, in (n, t), of the completion tokens of those that do.
        weight_n1: Weight of each sequence: 1 / turns of its rollout, or 1 where turns are summed.
        balance_n1: Weight of the stratum of each sequence.
        behaviour_logp_nt: Log-probabilities of the draws after every sampling control, for the importance correction.
        learned_nt: 1 for tokens to learn from; ``None`` where all are.
    """

    task: str
    mask_nt: Tensor
    logp_nt: Tensor
    entropy_nt: Tensor
    reference_logp_nt: Tensor | None
    sampled_logp_nt: Tensor
    old_logp_nt: Tensor
    advantages: Tensor
    trained_n: Tensor
    trained_places_m: Tensor
    weight_n1: Tensor
    balance_n1: Tensor
    behaviour_logp_nt: Tensor | None
    learned_nt: Tensor | None


@dataclass(frozen=True, slots=True)
class TermConfig:
    """What the terms of a task are made with at this step.

    Attributes:
        grpo: The ``grpo`` section.
        loss: The policy loss, its clip range as a guard has it.
        share: Denominators of the task, over the whole update.
        kl_coef: Coefficient of the KL penalty.
        entropy_coef: Coefficient of the entropy bonus.
        generator: Random numbers of losses that draw.
    """

    grpo: Grpo
    loss: Loss
    share: Share
    kl_coef: float
    entropy_coef: float
    generator: torch.Generator | None = None


def make_term_batch(
    samples: Sequence[Sample],
    mask_nt: Tensor,
    logp_nt: Tensor,
    entropy_nt: Tensor,
    reference_logp_nt: Tensor | None,
    plan: Plan,
    config: Grpo,
) -> TermBatch:
    """Lay the samples of a micro-batch out as tensors, of the type and on the device of the scores.

    Args:
        samples: All of one task, in the order of the rows.
        mask_nt: 1 on completion tokens.
        logp_nt: Log-probabilities under the policy.
        entropy_nt: Entropies of its distributions.
        reference_logp_nt: Log-probabilities under the reference; ``None`` where the KL is not measured.
        plan: Plan of the update.
        config: The ``grpo`` section.

    Raises:
        ValueError: An advantage, or a log-probability of the sampler or the old policy, is not finite.
    """
    trained = [s.has_signal and not (config.mask_truncated and s.truncated) for s in samples]
    importance, like = config.loss.importance is not None, logp_nt
    rows = [s for s, counts in zip(samples, trained, strict=True) if counts]
    _check_finite("an advantage", ((s.advantage, *(s.advantages or ())) for s in rows))
    _check_finite("an old log-probability", (s.old_logprobs for s in rows if not plan.at_old_policy))
    _check_finite("a log-probability of the sampler", (s.behaviour for s in rows if importance))
    return TermBatch(
        task=samples[0].task,
        mask_nt=mask_nt,
        logp_nt=logp_nt,
        entropy_nt=entropy_nt,
        reference_logp_nt=reference_logp_nt,
        sampled_logp_nt=_pad([s.logprobs for s in samples], like),
        old_logp_nt=logp_nt.detach() if plan.at_old_policy else _pad([s.old_logprobs for s in samples], like),
        advantages=_advantages(samples, like),
        trained_n=torch.tensor(trained, device=like.device),
        trained_places_m=_places(samples, trained, mask_nt),
        weight_n1=torch.tensor([[s.weight] for s in samples], device=like.device),
        balance_n1=torch.tensor([[s.balance] for s in samples], device=like.device),
        behaviour_logp_nt=_pad([s.behaviour for s in samples], like) if importance else None,
        learned_nt=_pad([s.keep or () for s in samples], like) if any(s.keep is not None for s in samples) else None,
    )


def build_terms(batch: TermBatch, config: TermConfig) -> tuple[list[Term], list[Statistic]]:
    """Return the terms of a micro-batch, and its statistics; nothing is read from the device.

    The surrogate is divided by ``share.denominator`` and KL and entropy are means over ``share.tokens``, so that the
    terms of all micro-batches of an update add up to the terms of the update.

    Args:
        batch: The samples and their scores.
        config: Loss and coefficients.
    """
    mean_nt = batch.mask_nt * batch.weight_n1 / config.share.tokens
    statistics = sampler_gap(batch)
    terms: list[Term] = []
    if len(batch.trained_places_m):
        surrogate, measured = policy_term(batch, config)
        terms.append(surrogate)
        statistics += measured
    if batch.reference_logp_nt is not None:
        penalty, measured = kl_term(batch, batch.reference_logp_nt, mean_nt, config)
        terms.append(penalty)
        statistics += measured
    entropy = (batch.entropy_nt * mean_nt).sum()
    statistics.append(Statistic(metric.ENTROPY_BY_TASK.of(batch.task), entropy.detach()))
    terms.append(Term("entropy", entropy, "maximize", config.entropy_coef * config.share.weight, batch.task))
    statistics.append(Statistic(metric.LOSS, scalar_loss(terms).detach()))
    return terms, statistics


def policy_term(batch: TermBatch, config: TermConfig) -> tuple[Term, list[Statistic]]:
    """Return the policy surrogate of a micro-batch, to be maximised, and its statistics."""
    mask_nt = batch.mask_nt * batch.trained_n[:, None]
    weight_nt, statistics = token_weights(batch, mask_nt, config)
    loss = losses.policy_loss(
        config.loss,
        batch.logp_nt,
        batch.old_logp_nt,
        batch.advantages,
        mask_nt,
        weight_nt=weight_nt,
        generator=config.generator,
        validate=False,
        places_m=batch.trained_places_m,
    )
    section = config.grpo.loss
    value = losses.aggregate(
        section.aggregation,
        loss.surrogate_nt,
        mask_nt,
        fixed_length=section.fixed_length or config.grpo.sampling.max_new_tokens,
        denominator=config.share.denominator,
    )
    statistics += loss_statistics(loss.stats, len(batch.trained_places_m))
    return Term("policy", value, "maximize", config.share.weight, batch.task), statistics


def token_weights(batch: TermBatch, mask_nt: Tensor, config: TermConfig) -> tuple[Tensor, list[Statistic]]:
    """Factor of each token's surrogate, (n, t): of its episode and stratum, importance correction, top entropy."""
    weight_nt = (batch.weight_n1 * batch.balance_n1).expand_as(mask_nt)
    section, correction_nt, statistics = config.grpo.loss, None, []
    if section.importance is not None and batch.behaviour_logp_nt is not None:
        correction = losses.importance_weights(
            section.importance,
            batch.old_logp_nt,
            batch.behaviour_logp_nt,
            mask_nt,
            low=section.importance_low,
            high=section.importance_high,
            validate=False,
            places_m=batch.trained_places_m,
        )
        correction_nt = correction.weight_nt
        statistics = loss_statistics(correction.stats, len(batch.trained_places_m))
    combined = combine_weights(weight_nt, correction_nt, batch.learned_nt)
    return weight_nt if combined is None else combined, statistics


def kl_term(
    batch: TermBatch, reference_nt: Tensor, mean_nt: Tensor, config: TermConfig
) -> tuple[Term, list[Statistic]]:
    """Return the KL to the reference, to be minimised, and its statistics."""
    section = config.grpo.kl
    kl_nt = kl_estimators.estimate(
        section.estimator,
        batch.logp_nt,
        reference_nt,
        gradient=section.gradient,
        old_logp_nt=batch.old_logp_nt if section.gradient == "importance" else None,
    )
    value = (kl_nt * mean_nt).sum()
    gap = ((batch.logp_nt.detach() - reference_nt).abs() * mean_nt).sum()
    statistics = [
        Statistic(metric.KL_BY_TASK.of(batch.task), value.detach()),
        Statistic(REFERENCE_GAP.format(task=batch.task), gap),
    ]
    return Term("kl", value, "minimize", config.kl_coef * config.share.weight, batch.task), statistics


def sampler_gap(batch: TermBatch) -> list[Statistic]:
    """Return how far the policy's log-probabilities are from those that the sampler recorded."""
    gap_nt = (batch.logp_nt.detach() - batch.sampled_logp_nt).abs() * batch.mask_nt
    return [
        Statistic(f"{metric.LOGP_DIFFERENCE_MEAN}|sum", gap_nt.sum()),
        Statistic(f"{metric.LOGP_DIFFERENCE_MEAN}|count", batch.mask_nt.sum()),
        Statistic(metric.LOGP_DIFFERENCE_MAX, gap_nt.max(), "max"),
    ]


def _check_finite(what: str, rows: Iterable[Sequence[float]]) -> None:
    for row in rows:
        if not all(map(math.isfinite, row)):
            raise ValueError(f"policy loss: {what} is not finite")


def _places(samples: Sequence[Sample], trained: Sequence[bool], mask_nt: Tensor) -> Tensor:
    """Flat positions of the completion tokens of the samples that are trained on, told without reading the mask."""
    width = mask_nt.shape[1]
    rows = [torch.arange(i * width, i * width + len(s.logprobs)) for i, s in enumerate(samples) if trained[i]]
    places_m = torch.cat(rows) if rows else torch.zeros(0, dtype=torch.long)
    return places_m.to(mask_nt.device, non_blocking=True)


def _pad(rows: Sequence[Sequence[float]], like: Tensor) -> Tensor:
    """Rows of numbers as (n, t), zero where a row is shorter than the longest."""
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=like.dtype) for row in rows], batch_first=True)
    return padded.to(like.device)


def _advantages(samples: Sequence[Sample], like: Tensor) -> Tensor:
    """One a sequence, or one a token where an estimator tells tokens apart."""
    if all(s.advantages is None for s in samples):
        return torch.tensor([s.advantage for s in samples], device=like.device, dtype=like.dtype)
    return _pad([s.advantages or (s.advantage,) * len(s.logprobs) for s in samples], like)
