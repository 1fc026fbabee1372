"""Mutations of what the checks of the loss and its signs guard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import levelhead.objective.aggregation.merger
import levelhead.objective.losses
import levelhead.policy.policy
import levelhead.training.grpo
import levelhead.training.objective
import levelhead.training.terms
from levelhead.objective.terms import Term
from levelhead.policy.packing import MicroBatch, TokenSequence
from levelhead.policy.policy import Policy, TokenStats
from levelhead.training.batch import Batch, Sample
from levelhead.training.sft import SftTrainer
from levelhead.training.terms import TermBatch
from preflight.mutations.base import Context, Mutation, fault, patch

BONUS = ("grpo.entropy.coef=0.01",)
LEASH = ("grpo.kl.coef=0.05",)
SHORT = ("grpo.sampling.max_new_tokens=4", "eval.sampling.max_new_tokens=4", "sft=null")
HALF = ("model.dtype=bfloat16", "grpo.kl.coef=0.05", "grpo.entropy.coef=0.02", *SHORT)


def _masked(change: Callable[[Tensor], Tensor]) -> Callable[[], Context]:
    """Change the mask that the surrogate is computed with."""

    def make(real: Any) -> Any:
        def policy_loss(kind: Any, logp: Any, old: Any, advantages: Any, mask: Tensor, **options: Any) -> Any:
            return real(kind, logp, old, advantages, change(mask), **options)

        return policy_loss

    return patch(levelhead.objective.losses, "policy_loss", make)


def _without_first(mask_nt: Tensor) -> Tensor:
    return mask_nt * (torch.arange(mask_nt.shape[1]) > 0)


def _without_last(mask_nt: Tensor) -> Tensor:
    return mask_nt * mask_nt.roll(-1, 1) * (torch.arange(mask_nt.shape[1]) < mask_nt.shape[1] - 1)


def _scored(change: Callable[[TokenStats, MicroBatch], TokenStats]) -> Callable[[], Context]:
    """Change what the policy says of the labels."""

    def make(real: Any) -> Any:
        return lambda self, batch, temperature=1.0: change(real(self, batch, temperature), batch)

    return patch(Policy, "score", make)


def _sft_labels(change: Callable[[Policy, TokenSequence], TokenSequence]) -> Callable[[], Context]:
    """Change what the supervised step packs, and not what it says it shows."""

    def make(real: Any) -> Any:
        def step(self: SftTrainer, number: int) -> Any:
            def pack(inner: Any) -> Any:
                return lambda policy, sequences, tokens: inner(policy, [change(policy, s) for s in sequences], tokens)

            with patch(Policy, "pack", pack)():
                return real(self, number)

        return step

    return patch(SftTrainer, "step", make)


def _without_stop(policy: Policy, pair: TokenSequence) -> TokenSequence:
    return replace(pair, completion_ids=pair.completion_ids[:-1] or pair.completion_ids)


def _with_prompt(policy: Policy, pair: TokenSequence) -> TokenSequence:
    return TokenSequence(pair.context_ids[:4], pair.context_ids[4:] + pair.completion_ids, pair.prefix_group)


def _terms(change: Callable[[Term], Term]) -> Callable[[], Context]:
    """Change the terms where they become one loss, behind the objective's back."""

    def make(real: Any) -> Any:
        return lambda terms: real([change(term) for term in terms])

    return patch(levelhead.objective.aggregation.merger, "scalar_loss", make)


def _flipped(name: str) -> Callable[[Term], Term]:
    other = {"maximize": "minimize", "minimize": "maximize"}
    return lambda term: replace(term, sense=other[term.sense]) if term.name == name else term


def _detached(name: str) -> Callable[[], Context]:
    """A term whose value leads back to no weight."""

    def make(real: Any) -> Any:
        def term(label: str, value: Any, *rest: Any) -> Any:
            return real(label, value.detach() if label == name else value, *rest)

        return term

    return patch(levelhead.training.terms, "Term", make)


def _swapped(real: Any) -> Any:
    """The divergence of the reference from the policy's log-probabilities with the two exchanged and negated."""
    return lambda kind, logp, reference, **options: -real(kind, logp, reference, **options)


def _stop_doubled(sequences: Sequence[TokenSequence]) -> Sequence[TokenSequence]:
    return [replace(s, completion_ids=(*s.completion_ids, s.completion_ids[-1])) for s in sequences]


def _demonstrated(change: Callable[[Sequence[TokenSequence]], Sequence[TokenSequence]]) -> Callable[[], Context]:
    return patch(SftTrainer, "demonstrations", lambda real: lambda self, prompts: list(change(real(self, prompts))))


def _advantages(change: Callable[[list[float], list[Sample]], list[float]]) -> Callable[[], Context]:
    """Deal the advantages of a batch out anew, once each sample has its own."""

    def make(real: Any) -> Any:
        def make_batch(*args: Any, **options: Any) -> Batch:
            batch = real(*args, **options)
            flat = [sample for group in batch.groups for sample in group]
            dealt = iter(change([sample.advantage for sample in flat], flat))
            groups = [[replace(sample, advantage=next(dealt)) for sample in group] for group in batch.groups]
            return replace(batch, groups=groups)

        return make_batch

    return patch(levelhead.training.grpo, "make_batch", make)


def _by_length(values: list[float], samples: list[Sample]) -> list[float]:
    return [value for _, value in sorted(zip((len(s.logprobs) for s in samples), values, strict=True))]


def _measured(name: str, change: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], Context]:
    """Change what a term is taken over, by the mask; 0 at a token leaves it out."""

    def make(real: Any) -> Any:
        def build_terms(batch: TermBatch, config: Any) -> Any:
            share_nt = change(torch.ones_like(batch.mask_nt), batch.mask_nt)
            if name == "entropy":
                return real(replace(batch, entropy_nt=batch.entropy_nt * share_nt), config)
            reference_nt = torch.where(share_nt > 0, batch.reference_logp_nt, batch.logp_nt.detach())
            return real(replace(batch, reference_logp_nt=reference_nt), config)

        return build_terms

    return patch(levelhead.training.objective, "build_terms", make)


def _longest(share_nt: Tensor, mask_nt: Tensor) -> Tensor:
    return share_nt * (mask_nt.sum(1, keepdim=True) == mask_nt.sum(1).max())


WRONG_SAMPLES = (
    fault("signs/audit", "advantages-rolled"),
    Mutation("signs/audit", "advantages are sorted by length", _advantages(_by_length)),
    Mutation("signs/audit", "advantages are the next sample's", _advantages(lambda values, _: values[1:] + values[:1])),
    Mutation(
        "signs/audit", "the first advantage is everybody's", _advantages(lambda values, _: values[:1] * len(values))
    ),
    Mutation("signs/audit", "advantages are the next group's", _advantages(lambda values, _: values[4:] + values[:4])),
)
"""Advantages that are right, on samples that they are not of."""
WRONG_MASKS = (
    Mutation(
        "signs/audit",
        "the entropy is that of first tokens",
        _measured("entropy", lambda o, _: o - _without_first(o)),
        BONUS,
    ),
    Mutation(
        "signs/audit",
        "the entropy leaves first tokens out",
        _measured("entropy", lambda o, _: _without_first(o)),
        BONUS,
    ),
    Mutation(
        "signs/audit",
        "the entropy leaves last tokens out",
        _measured("entropy", lambda _, mask: _without_last(mask)),
        BONUS,
    ),
    Mutation("signs/audit", "the entropy is that of the longest answers", _measured("entropy", _longest), BONUS),
    Mutation("signs/audit", "the KL leaves first tokens out", _measured("kl", lambda o, _: _without_first(o)), LEASH),
)
"""Means over some of the completion tokens."""


def _half_the_mask(real: Any) -> Any:
    return lambda self: real(self) * (torch.arange(max(self.lengths)) % 2)


MUTATIONS = (
    fault("loss/completion-only", "mask-for-right-padding"),
    fault("loss/completion-only", "labels-off-by-one"),
    Mutation("loss/completion-only", "a mask hides the first token", _masked(_without_first)),
    Mutation("loss/completion-only", "a mask hides the last token", _masked(_without_last)),
    Mutation("loss/completion-only", "the mask is one token late", _masked(lambda mask_nt: mask_nt.roll(1, 1))),
    Mutation("loss/completion-only", "the mask is another rollout's", _masked(lambda mask_nt: mask_nt.roll(1, 0))),
    fault("loss/completion-only", "entropy-of-impossible-tokens"),
    fault("loss/demonstrations", "mask-for-right-padding"),
    Mutation("loss/demonstrations", "stop tokens are left out of the loss", _sft_labels(_without_stop)),
    Mutation("loss/demonstrations", "the prompt is in the loss", _sft_labels(_with_prompt)),
    fault("loss/labels", "pad-is-end-of-turn"),
    Mutation("loss/labels", "every second token is masked", patch(MicroBatch, "mask", _half_the_mask)),
    Mutation(
        "loss/labels",
        "the loss is the entropy, whatever the label",
        _scored(lambda stats, _: replace(stats, logp=-stats.entropy)),
    ),
    fault("loss/stop-token", "targets-without-stop-token"),
    fault("loss/stop-token", "appended-end-of-turn", proof=True),
    Mutation("loss/stop-token", "demonstrations end with two stop tokens", _demonstrated(_stop_doubled)),
    fault("signs/audit", "entropy-negated-twice"),
    fault("signs/audit", "kl-rewarded"),
    Mutation("signs/audit", "the loss maximizes the KL although its term does not", _terms(_flipped("kl")), LEASH),
    Mutation("signs/audit", "the loss minimizes the rewards", _terms(_flipped("policy"))),
    Mutation("signs/precision", "the entropy is penalised in bfloat16", _terms(_flipped("entropy")), HALF),
    Mutation("signs/precision", "the KL is rewarded in bfloat16", _terms(_flipped("kl")), HALF),
    Mutation("signs/precision", "rewards are minimized in bfloat16", _terms(_flipped("policy")), HALF),
    fault("signs/audit", "advantages-negated"),
    fault("signs/audit", "entropy-penalised"),
    Mutation("signs/audit", "the surrogate is detached", _detached("policy")),
    Mutation("signs/audit", "the entropy is detached", _detached("entropy"), BONUS),
    Mutation("signs/audit", "the KL is detached", _detached("kl"), LEASH),
    Mutation(
        "signs/audit",
        "the KL's estimate is negated",
        patch(levelhead.training.terms.kl_estimators, "estimate", _swapped),
        LEASH,
    ),
    *WRONG_SAMPLES,
    *WRONG_MASKS,
    fault("signs/audit", "entropy-summed-over-tokens"),
    fault("signs/reward", "advantages-negated"),
    Mutation("signs/reward", "the loss minimizes the rewards", _terms(_flipped("policy"))),
    Mutation("signs/reward", "the surrogate is detached", _detached("policy")),
    fault("signs/entropy", "entropy-penalised"),
    Mutation("signs/entropy", "the loss minimizes the entropy", _terms(_flipped("entropy")), BONUS),
    Mutation("signs/entropy", "the entropy is detached", _detached("entropy"), BONUS),
    fault("signs/kl", "kl-rewarded"),
    fault("signs/kl", "reference-not-frozen"),
    Mutation("signs/kl", "the KL is detached", _detached("kl"), LEASH),
    Mutation(
        "signs/kl",
        "the estimate is negated",
        patch(levelhead.training.terms.kl_estimators, "estimate", _swapped),
        LEASH,
    ),
)
