"""Agreement: sampler, trainer and reference compute the same policy, with this recipe's temperature and controls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import nn

from levelhead import metrics as metric
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import REFERENCE_ADAPTER
from levelhead.policy.rounding import tolerance
from levelhead.recipe.objective import Kl
from levelhead.records import Group, Turn
from levelhead.training.prepare import make_objective
from oracle import plain
from oracle.causes import Explanation, find_cause, says
from oracle.context import PreflightContext
from oracle.dispute import Account, Dispute, recorded, scored
from oracle.noise import shaken
from oracle.result import Check, judged
from oracle.shown import shown_groups
from oracle.trial import Trial, contrasted, grpo_trial

COMPARED = 12
"""Turns whose log-probabilities are computed again, one by one."""


def check_agreement(context: PreflightContext) -> Iterator[Check]:
    """Compare log-probabilities of the same tokens by every path."""
    temperature = context.controls.temperature or 1.0
    with context.exact():
        turns = _redrawn(context)
        yield _sampler(context, turns, temperature)
        yield _packing(context, turns, temperature)
        yield _synced(context)
        if context.grpo is not None:
            yield _reference(context, temperature)
    if context.grpo is not None:
        yield _trainer(context)
        yield _dropout(context)


def _redrawn(context: PreflightContext) -> list[Turn]:
    """Draw with the recipe's controls, in the present precision, and by the collector's own draws besides."""
    controls = context.controls.model_copy(update={"max_new_tokens": min(48, context.controls.max_new_tokens)})
    controls = controls.model_copy(update={"min_new_tokens": min(controls.min_new_tokens, 8)})
    drawn = context.generator.sample(context.contexts, 2, controls, context.seed)
    return [turn for turns in drawn for turn in turns if turn.completion_ids]


@torch.no_grad()
def _sampler(context: PreflightContext, turns: Sequence[Turn], temperature: float) -> Check:
    """What the sampler recorded is what the model says of the sampled tokens."""
    gaps: list[float] = []
    for turn in turns[:COMPARED]:
        told = plain.logprobs(context.policy, turn.context_ids, turn.completion_ids, temperature).tolist()
        gaps += [abs(a - b) for a, b in zip(told, turn.logprobs, strict=True)]
    return _compared(
        _dispute(context, "the sampler", recorded(turns[:COMPARED]), temperature),
        "agreement/sampler",
        gaps,
        "recorded by the sampler and computed by the model",
        {"temperature": temperature, "turns": min(len(turns), COMPARED)},
        "record log-probabilities at the temperature of the draw, of the tokens drawn, after the prompt as it was read",
    )


@torch.no_grad()
def _packing(context: PreflightContext, turns: Sequence[Turn], temperature: float) -> Check:
    """Packed together, sequences have the log-probabilities they have alone."""
    compared_turns = list(turns[:COMPARED])
    sequences = [TokenSequence(t.context_ids, t.completion_ids, i // 2) for i, t in enumerate(compared_turns)]
    gaps: list[float] = []
    entropies: list[float] = []
    scores = []
    for micro in context.policy.pack(sequences, max(2048, max(len(s.input_ids) for s in sequences))):
        stats = context.policy.score(micro, temperature)
        parts = torch.split(stats.logp, list(micro.lengths))
        for index, part in zip(micro.indices, parts, strict=True):
            turn = compared_turns[index]
            logp_alone = plain.logprobs(context.policy, turn.context_ids, turn.completion_ids, temperature)
            if len(logp_alone) != len(part):
                gaps.append(math.inf)
                continue
            gaps += (logp_alone - part).abs().tolist()
        entropies += stats.entropy.tolist()
        scores.append((micro, stats.logp))
    evidence = {"temperature": temperature, "sequences": len(compared_turns), "mean_entropy": fmean(entropies)}
    what = "computed by the trainer in one batch and by the model alone"
    fix = "mask padding and other sequences out of attention, and give each token its own position"
    drawn = [(turn.context_ids, turn.completion_ids) for turn in compared_turns]
    case = _dispute(context, "the trainer", scored(scores), temperature, drawn)
    return _compared(case, "agreement/packing", gaps, what, evidence, fix)


def _dispute(
    context: PreflightContext,
    who: str,
    accounts: Sequence[Account],
    temperature: float,
    drawn: Sequence[tuple[tuple[int, ...], tuple[int, ...]]] = (),
) -> Dispute:
    own = context.generator.policy if who == "the sampler" else None
    return Dispute(who, context.policy, accounts, temperature, tolerance(context.policy), drawn, own, context.controls)


def _compared(case: Dispute, name: str, gaps: Sequence[float], what: str, evidence: dict[str, Any], fix: str) -> Check:
    allowed = case.allowed
    mean, most = (fmean(gaps), max(gaps)) if gaps else (0.0, 0.0)
    numbers = {"tokens": len(gaps), "mean_difference": mean, "largest_difference": most}
    limits = {"allowed_mean": allowed.mean, "allowed_largest": allowed.most}
    wrong = None
    if not (mean <= allowed.mean and most <= allowed.most):
        cause = find_cause(case)
        evidence |= {"cause": cause.cause if cause else None}
        wrong = f"log-probabilities {what} differ by {mean:.3g} nats on average and {most:.3g} at most; {says(cause)}"
    right = f"log-probabilities {what} agree (at most {most:.1g} nats apart)"
    return judged(name, wrong, right, evidence | numbers | limits, fix)


def _trainer(context: PreflightContext) -> Check:
    """The trainer, on the collector's own rollouts in the run's own precision, finds the ratio 1 it should find."""
    grpo = context.grpo
    assert grpo is not None
    shown = shown_groups(context, context.drawn.k)
    groups = contrasted([*context.drawn.groups, *shown])
    bare = grpo.model_copy(update={"kl": Kl()})
    trial = grpo_trial(context, bare, groups)
    context.train_seconds = trial.seconds
    step_metrics = trial.result.record.values
    mean = step_metrics.get(metric.LOGP_DIFFERENCE_MEAN, 0.0)
    most = step_metrics.get(metric.LOGP_DIFFERENCE_MAX, 0.0)
    allowed = tolerance(context.policy)
    behaviour = [
        abs(a - b) for turn in context.turns for a, b in zip(turn.logprobs, turn.behaviour_logprobs, strict=True)
    ]
    controls = fmean(behaviour) if behaviour else 0.0
    evidence = {
        "mean_difference": mean,
        "largest_difference": most,
        "allowed_mean": allowed.mean,
        "allowed_largest": allowed.most,
        "temperature": context.controls.temperature,
        "compute_dtype": str(context.policy.compute_dtype).removeprefix("torch."),
        "controls_mean_difference": controls,
    }
    name = "agreement/trainer"
    fix = "the trainer must score the ids that the sampler read and drew, at the sampling temperature"
    if not (mean <= allowed.mean and most <= allowed.most):
        cause = _trainer_or_sampler(context, trial, shown)
        evidence |= {"cause": cause.cause if cause else None}
        wrong = (
            f"the trainer's log-probabilities of the sampled tokens differ from the sampler's by {mean:.3g} nats on "
            f"average and {most:.3g} at most: every ratio starts away from 1; {says(cause)}"
        )
        return Check(name, "fail", wrong, evidence, fix)
    if controls > 0.05:
        message = (
            f"penalties, truncation or a minimum length move the draws {controls:.2f} nats a token away from the "
            "policy that is trained: the gradient is that of another policy"
        )
        remedy = "drop these controls from grpo.sampling, or set grpo.loss.importance"
        return Check(name, "pass" if grpo.loss.importance else "warn", message, evidence, remedy)
    return Check(name, "pass", f"sampler and trainer agree (mean difference {mean:.1g} nats)", evidence)


@torch.no_grad()
def _trainer_or_sampler(context: PreflightContext, trial: Trial, shown: Sequence[Group]) -> Explanation | None:
    """Return what explains that trainer and sampler disagree, whichever of them is wrong."""
    drawn = [turn for _, turns in context.drawn.turns for turn in turns]
    all_turns = [*drawn, *(turn for group in shown for rollout in group.rollouts for turn in rollout.turns)]
    pairs = [(turn.context_ids, turn.completion_ids) for turn in all_turns]
    heat = context.controls.temperature or 1.0
    by_trainer = _dispute(context, "the trainer", scored(trial.listener.scores), heat, pairs)
    by_sampler = _dispute(context, "the sampler", recorded(drawn), heat)
    return find_cause(by_trainer) or find_cause(by_sampler)


@torch.no_grad()
def _synced(context: PreflightContext) -> Check:
    """After an update and a sync the sampler draws from the new weights, and says so."""
    before = context.policy.version
    prompts = context.contexts[:3]
    with shaken(context.policy) as old:
        context.policy.version = before + 1
        context.loop.run(context.generator.sync_weights())
        turns = [t[0] for t in context.generator.sample(prompts, 1, context.greedy(), context.seed)]
        case = replace(_dispute(context, "the sampler", recorded(turns), 1.0), old=old)
        gap = case.apart()
        version = context.generator.version
        cause = None if gap.within(case.allowed) else find_cause(case)
    context.policy.version = before
    context.loop.run(context.generator.sync_weights())
    evidence: dict[str, Any] = {
        "mean_difference": gap.mean,
        "largest_difference": gap.most,
        "allowed": case.allowed.most,
        "version": version - before,
    }
    wrong = None
    if not gap.within(case.allowed):
        evidence["cause"] = cause.cause if cause else None
        wrong = (
            f"after an update and a sync the sampler's log-probabilities are {gap.most:.3g} nats away from the new "
            f"weights': it still draws from old ones, or others; {says(cause)}"
        )
    elif version != before + 1:
        wrong = f"after a sync to version {before + 1} the sampler calls itself version {version}"
    right = "after an update the sampler draws from the new weights"
    return judged("agreement/synced", wrong, right, evidence, "sync the sampler after every update, weights included")


@torch.no_grad()
def _reference(context: PreflightContext, temperature: float) -> Check:
    """The reference is the policy at step 0, and stays where it is when the policy moves."""
    grpo = context.grpo
    assert grpo is not None
    if not make_objective(context.recipe, grpo)[0].coefficients.needs_reference:
        return Check("agreement/reference", "pass", "no task is under a KL penalty, so no reference is kept")
    policy = context.policy
    turns = [turn for turn in context.turns if turn.completion_ids][:4]
    cut = [TokenSequence(t.context_ids, t.completion_ids[:64]) for t in turns]
    (micro, *_) = policy.pack(cut, 1 << 20)
    policy.keep_reference(trained=context.recipe.sft is not None)
    try:
        first = policy.reference_logp(micro, temperature)
        kl_start = float((policy.score(micro, temperature).logp - first).abs().max())
        with shaken(policy):
            moved = float((policy.reference_logp(micro, temperature) - first).abs().max())
            apart = float((policy.score(micro, temperature).logp - first).abs().max())
        trained = {id(p) for p in policy.parameters}
        reference = policy._reference if isinstance(policy._reference, nn.Module) else None
        aliased = reference is not None and any(id(p) in trained or p.requires_grad for p in reference.parameters())
    finally:
        policy.drop_reference()
        if policy.lora and REFERENCE_ADAPTER in policy.model.peft_config:
            policy.model.delete_adapter(REFERENCE_ADAPTER)
    allowed = tolerance(policy).most
    evidence = {"difference_at_start": kl_start, "reference_moved": moved, "policy_moved": apart, "allowed": allowed}
    wrong = None
    if kl_start > allowed:
        wrong = f"at step 0 reference and policy differ by {kl_start:.3g} nats a token: the KL does not start at 0"
    elif moved > allowed / 10 or aliased:
        wrong = (
            f"the reference moves with the policy ({moved:.3g} nats when the weights were nudged): it is not frozen, "
            "and the KL will stay 0 whatever happens"
        )
    right = "the reference equals the policy at step 0 and stays when the policy moves"
    return judged("agreement/reference", wrong, right, evidence, "copy the weights and freeze the copy before training")


def _dropout(context: PreflightContext) -> Check:
    """In training mode the policy is still a function of its tokens."""
    policy = context.policy
    turn = min(context.turns, key=lambda t: len(t.context_ids))
    (micro,) = policy.pack([TokenSequence(turn.context_ids, turn.completion_ids)], 1 << 20)
    modules = [m for m in policy.model.modules() if isinstance(m, nn.Dropout) and m.p > 0]
    attention = [
        m for m in policy.model.modules() if isinstance(a := getattr(m, "attention_dropout", 0), float) and a > 0
    ]
    with torch.no_grad(), policy.training():
        first, second = policy.score(micro).logp, policy.score(micro).logp
    gap = float((first - second).abs().max())
    evidence = {"dropout_modules": len(modules), "attention_dropout": len(attention), "two_passes_differ_by": gap}
    wrong = None
    if modules or attention or gap > tolerance(policy).most:
        wrong = (
            f"dropout is on while training ({len(modules)} dropout modules, {len(attention)} attention layers, two "
            f"passes differ by {gap:.3g} nats): sampler and trainer compute different policies, and ratios are noise"
        )
    right = "training mode computes the sampler's policy: no dropout"
    return judged("agreement/dropout", wrong, right, evidence, "set every dropout to 0 for the grpo stage")
