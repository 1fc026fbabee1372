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
import levelhead.training.terms
from levelhead.objective.terms import Term
from levelhead.policy.packing import MicroBatch, TokenSequence
from levelhead.policy.policy import Policy, TokenStats
from levelhead.training.sft import SftTrainer
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
    fault("loss/stop-token", "appended-end-of-turn"),
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
