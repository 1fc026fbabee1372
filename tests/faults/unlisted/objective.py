"""The loss: what it is divided by, ratios, clipping, the reference, tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

import levelhead.objective.losses
import levelhead.training.objective
import levelhead.training.terms
from faults.unlisted.registry import INSTRUCT, TRL, VERL, ZOO, swapped, unlisted
from levelhead.objective.losses import Clipped, Inputs
from levelhead.policy.policy import Policy
from levelhead.training.grpo import GrpoTrainer
from levelhead.training.objective import Objective
from levelhead.training.plan import Share

FIXED = "grpo.loss.aggregation=fixed_length"
SMALL = "grpo.tokens_per_microbatch=128"
AGAIN = ("grpo.updates_per_batch=2", "grpo.epochs=2")
WEIGH = (
    "tokens weigh|",
    "tokens weighs|",
    "tokens weighted",
    "tokens times",
    "scaled",
    "times too",
    "divided",
    "denominator",
    "divisor",
)


def _aggregated(change: Callable[..., Any]) -> Iterator[None]:
    """Put ``change(real, mode, per_token_nt, mask_nt, fixed_length, denominator)`` in the place of the aggregation."""

    def make(real: Any) -> Any:
        def aggregate(mode: str, values: Any, mask: Any, *, fixed_length: Any = None, denominator: Any = None) -> Any:
            return change(real, mode, values, mask, fixed_length, denominator)

        return aggregate

    with swapped(levelhead.objective.losses, "aggregate", make):
        yield


@unlisted(
    "means-of-microbatches",
    "each micro-batch is divided by its own tokens and the means are averaged: short ones count too much",
    TRL + "pull/7249",
    VERL + "pull/3294",
    kind="aggregation",
    named_by=[*WEIGH, "micro-batch"],
    settings=[SMALL],
)
def _means_of_microbatches() -> Iterator[None]:
    micros = {"count": 1}

    def packed(real: Any) -> Any:
        def pack(self: Policy, *args: Any, **options: Any) -> Any:
            made = real(self, *args, **options)
            micros["count"] = len(made)
            return made

        return pack

    def change(real: Any, mode: str, values: Any, mask: Any, fixed: Any, denominator: Any) -> Any:
        if denominator is None:
            return real(mode, values, mask, fixed_length=fixed)
        if not bool((mask != 0).any()):
            return (values * 0).sum()
        return real(mode, values, mask, fixed_length=fixed) / micros["count"]

    with swapped(Policy, "pack", packed):
        yield from _aggregated(change)


@unlisted(
    "sequences-not-averaged",
    "Dr. GRPO's loss is the sum over sequences and not their mean: it grows with the batch, its KL does not",
    VERL + "issues/3741",
    TRL + "pull/4935",
    kind="aggregation",
    named_by=[*WEIGH, "number of sequences"],
    settings=[FIXED, "grpo.kl.coef=0.1"],
)
def _sequences_not_averaged() -> Iterator[None]:
    def change(real: Any, mode: str, values: Any, mask: Any, fixed: Any, denominator: Any) -> Any:
        return real(mode, values, mask, fixed_length=fixed, denominator=denominator and 1.0)

    yield from _aggregated(change)


@unlisted(
    "divisor-is-the-longest-answer",
    "Dr. GRPO's constant divisor is the padded length of the micro-batch at hand",
    VERL + "pull/4360",
    VERL + "pull/2435",
    kind="aggregation",
    named_by=[*WEIGH, "fixed_length", "longest answer", "padded length"],
    settings=[FIXED, SMALL],
)
def _divisor_is_the_longest_answer() -> Iterator[None]:
    def change(real: Any, mode: str, values: Any, mask: Any, fixed: Any, denominator: Any) -> Any:
        return real(mode, values, mask, fixed_length=fixed and mask.shape[1], denominator=denominator)

    yield from _aggregated(change)


@unlisted(
    "sums-divided-by-length",
    "the mode that sums a sequence's tokens divides by the sequence's length all the same",
    VERL + "issues/1233",
    kind="aggregation",
    named_by=[*WEIGH, "fixed_length", "long answers", "sequence_mean"],
    settings=[FIXED],
)
def _sums_divided_by_length() -> Iterator[None]:
    def change(real: Any, mode: str, values: Any, mask: Any, fixed: Any, denominator: Any) -> Any:
        mode = "sequence_mean" if mode == "fixed_length" else mode
        return real(mode, values, mask, fixed_length=fixed, denominator=denominator)

    yield from _aggregated(change)


@unlisted(
    "ratio-always-one",
    "the old log-probabilities are those of the weights at hand in every update of a batch: nothing is ever clipped",
    ZOO + "pull/832",
    TRL + "issues/3120",
    kind="ratio",
    named_by=["ratio", "old log-prob", "off policy", "off-policy", "clip"],
    settings=[*AGAIN, "grpo.loss.clip_low=0.05", "grpo.loss.clip_high=0.05"],
)
def _ratio_always_one() -> Iterator[None]:
    def make(real: Any) -> Any:
        def plan(self: Objective, samples: Any, **options: Any) -> Any:
            return real(self, samples, **{**options, "at_old_policy": True})

        return plan

    with swapped(Objective, "plan", make):
        yield


@unlisted(
    "sequence-ratio-is-a-product",
    "the sequence's ratio is the product over its tokens and not their geometric mean: it grows with the length",
    TRL + "issues/5814",
    VERL + "pull/2775",
    kind="ratio",
    named_by=["ratio", "tokens weigh|", "tokens times", "geometric", "long answers"],
    settings=["grpo.loss.kind=gspo", *AGAIN],
)
def _sequence_ratio_is_a_product() -> Iterator[None]:
    def make(real: Any) -> Any:
        def total(self: Inputs, values_nt: Any) -> Any:
            return real(self, values_nt) * self.mask_nt.sum(dim=-1, keepdim=True).clamp(min=1)

        return total

    with swapped(Inputs, "sequence_mean", make):
        yield


@unlisted(
    "correction-never-applied",
    "the importance weights of the sampler are computed, logged, and not handed to the loss",
    TRL + "pull/5031",
    kind="ratio",
    named_by=["importance", "correction", "tokens weigh|", "behaviour"],
    settings=["grpo.loss.importance=token_truncate", "grpo.sampling.top_p=0.8", "grpo.sampling.temperature=1.2"],
)
def _correction_never_applied() -> Iterator[None]:
    def make(real: Any) -> Any:
        return lambda weight, correction, keep: real(weight, None, keep)

    with swapped(levelhead.training.terms, "combine_weights", make):
        yield


@unlisted(
    "upper-bound-is-hard-coded",
    "the upper clip bound is 0.2 whatever the recipe says",
    TRL + "pull/6019",
    kind="ratio",
    named_by=["clip"],
    settings=[*AGAIN, "grpo.loss.clip_low=0.02", "grpo.loss.clip_high=0.02"],
)
def _upper_bound_is_hard_coded() -> Iterator[None]:
    def make(real: Any) -> Any:
        return lambda self, factor: real(self, factor).model_copy(update={"clip_high": 0.2})

    with swapped(Clipped, "with_clip_scaled", make):
        yield


@unlisted(
    "clip-shares-without-the-sign",
    "the shares of clipped tokens count every ratio outside the range, also those that the minimum leaves unclipped",
    TRL + "issues/3032",
    kind="bookkeeping",
    named_by=["clip share", "clip_ratio", "clipped tokens", "clip metric"],
    settings=[*AGAIN, "grpo.loss.clip_low=0.02", "grpo.loss.clip_high=0.02"],
)
def _clip_shares_without_the_sign() -> Iterator[None]:
    def make(real: Any) -> Any:
        def stats(self: Inputs, low_nt: Any, high_nt: Any) -> Any:
            ratio_nt = self.ratio_nt.detach()
            return real(self, low_nt | (ratio_nt < 0.98), high_nt | (ratio_nt > 1.02))

        return stats

    with swapped(Inputs, "clip_stats", make):
        yield


@unlisted(
    "reference-is-the-base-model",
    "the reference switches the adapter off, though it was tuned before: the KL is measured from another policy",
    TRL + "issues/1340",
    TRL + "issues/3194",
    kind="reference",
    named_by=["reference base", "reference adapter", "reference first step", "kl first step", "kl start|"],
    settings=["model.lora={r: 4, alpha: 8}", "grpo.kl.coef=0.05"],
)
def _reference_is_the_base_model() -> Iterator[None]:
    def make(real: Any) -> Any:
        return lambda self, *, trained: real(self, trained=False)

    with swapped(Policy, "keep_reference", make):
        yield


@unlisted(
    "reference-follows",
    "the reference takes up 0.6 of the policy every fourth step, which nobody has asked for",
    INSTRUCT + "pull/642",
    kind="reference",
    named_by=["reference"],
    settings=["grpo.kl.coef=0.1"],
)
def _reference_follows() -> Iterator[None]:
    def make(real: Any) -> Any:
        def step(self: GrpoTrainer, number: int) -> Any:
            result = real(self, number)
            reference = self.policy._reference
            if number % 4 == 0 and isinstance(reference, torch.nn.Module):
                with torch.no_grad():
                    for mine, theirs in zip(reference.parameters(), self.policy.base.parameters(), strict=True):
                        mine.lerp_(theirs, 0.6)
            return result

        return step

    with swapped(GrpoTrainer, "step", make):
        yield


@unlisted(
    "truncated-answers-stay-in",
    "truncated answers are to be left out of the loss; they are left out of what it is divided by alone",
    TRL + "pull/4976",
    kind="masks",
    named_by=["truncated", "mask_truncated", "mask truncat", "ran out"],
    settings=["grpo.mask_truncated=true", "sft.steps=16"],
)
def _truncated_answers_stay_in() -> Iterator[None]:
    def make(real: Any) -> Any:
        def term_batch(samples: Any, *args: Any) -> Any:
            return real([replace(sample, truncated=False) for sample in samples], *args)

        return term_batch

    with swapped(levelhead.training.objective, "make_term_batch", make):
        yield


@unlisted(
    "tasks-share-a-denominator",
    "every task's tokens are divided by the tokens of all tasks: the task that writes more counts for more",
    VERL + "issues/2776",
    kind="tasks",
    named_by=[
        "task weigh|",
        "task share",
        "task denominator",
        "task times",
        "task divided",
        "tokens weigh|",
        "tokens times",
    ],
    probe="dual",
)
def _tasks_share_a_denominator() -> Iterator[None]:
    def make(real: Any) -> Any:
        def plan(self: Objective, samples: Any, **options: Any) -> Any:
            made = real(self, samples, **options)
            total = sum(share.denominator for share in made.shares.values())
            shares = {task: Share(s.weight, total / len(made.shares), s.tokens) for task, s in made.shares.items()}
            return replace(made, shares=shares)

        return plan

    with swapped(Objective, "plan", make):
        yield


@unlisted(
    "log-probabilities-in-bfloat16",
    "the trainer's log-probabilities are rounded to bfloat16, so that ratios are noise in steps of a percent",
    TRL + "pull/2669",
    TRL + "pull/4303",
    kind="precision",
    named_by=["precision", "bfloat16", "bf16", "rounded", "digits"],
    settings=[*AGAIN],
)
def _log_probabilities_in_bfloat16() -> Iterator[None]:
    def make(real: Any) -> Any:
        def score(self: Policy, *args: Any, **options: Any) -> Any:
            stats = real(self, *args, **options)
            rounded = stats.logp.bfloat16().float()
            return replace(stats, logp=stats.logp + (rounded - stats.logp).detach())

        return score

    with swapped(Policy, "score", make):
        yield
