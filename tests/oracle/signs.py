"""Signs: every term's gradient points where its sense says, by the audit and by trying it.

The audit reads the terms; the trials do not.  Each trial leaves one term in force, takes the gradient of the run's own
trainer, moves the weights against it, and measures with plain forward passes what happened: rollouts with a higher
reward must have become likelier, entropy must have risen, the distance from the reference must have shrunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch

from levelhead import metrics as metric
from levelhead.policy.policy import REFERENCE_ADAPTER
from levelhead.policy.rounding import coarsest, nudged
from levelhead.recipe.objective import Advantage, Kl
from levelhead.recipe.training import Grpo
from levelhead.records import Group, Turn
from levelhead.training.prepare import make_objective
from levelhead.training.signs import UNJUDGED, WRONG
from levelhead.training.step_result import StepResult
from oracle import plain
from oracle.context import PreflightContext
from oracle.result import Check, Status, judged
from oracle.trial import contrasted, differing, gradient, grpo_trial, stepped

_FIX = "a term carries its natural value and a sense; only objective.terms turns senses into signs"
_SIZES = (1e-3, 1e-4, 1e-5)
"""Shares of the weights' norm that a trial moves by: a smaller one where a larger one goes the wrong way."""

_Trial = Callable[[PreflightContext, Grpo, Sequence[Group]], Check]


def check_signs(context: PreflightContext) -> Iterator[Check]:
    """Audit one real batch, then try the terms one by one."""
    grpo = context.grpo
    if grpo is None:
        return
    groups = _few(context)
    if not groups:
        yield Check("signs/audit", "warn", "no group of two rollouts was drawn, so no update could be audited")
        return
    yield _precision(context, grpo, groups)
    with context.exact():
        tried: dict[str, _Trial] = {"signs/audit": _audit, "signs/reward": _policy}
        if grpo.entropy.coef > 0:
            tried["signs/entropy"] = _entropy
        if _has_kl_penalty(context, grpo) and grpo.kl.where == "loss":
            tried["signs/kl"] = _kl
        for name, trial in tried.items():
            try:
                yield trial(context, grpo, groups)
            except RuntimeError as error:
                message = f"the update breaks off: {(str(error).splitlines() or ['no message'])[0][:200]}"
                yield Check(name, "fail", message, {}, "look for a detached tensor, or a mask that is empty")
    context.policy.model.zero_grad()


def _few(context: PreflightContext) -> list[Group]:
    """Two groups a task, cut to four different rollouts."""
    groups_by_task: dict[str, list[Group]] = {}
    for group in context.drawn.groups:
        by_length = differing(group)
        step = max(1, (len(by_length) - 1) // 3)
        rollouts = by_length[::step][:4]
        if len(rollouts) > 1 and len(groups_by_task.setdefault(group.prompt.task, [])) < 2:
            groups_by_task[group.prompt.task].append(replace(group, rollouts=tuple(rollouts)))
    return [group for members in groups_by_task.values() for group in members]


def _has_kl_penalty(context: PreflightContext, grpo: Grpo) -> bool:
    return make_objective(context.recipe, grpo)[0].coefficients.needs_reference


def _audit(context: PreflightContext, grpo: Grpo, groups: Sequence[Group]) -> Check:
    """Compare the coefficients with which terms really enter the gradient with their senses."""
    result = _audited(context, grpo, groups)
    values = result.record.values
    errors = [event.message for event in result.events if event.code == WRONG]
    evidence = {
        k: v
        for k, v in values.items()
        if k.startswith(metric.AUDIT_COEF.prefix) and k.endswith(("coef", "slope", "unexplained"))
    }
    names = sorted(k.split("/", 1)[1].removesuffix("/coef") for k in evidence if k.endswith("/coef"))
    right = f"every term enters the update with its sense ({', '.join(names) or 'none could be told apart'})"
    return judged("signs/audit", "; ".join(errors) or None, right, evidence, _FIX)


def _precision(context: PreflightContext, grpo: Grpo, groups: Sequence[Group]) -> Check:
    """Do in the run's own precision what the audit of its first updates will do."""
    name, audit = "signs/precision", grpo.audit
    kind = str(coarsest(context.policy)).removeprefix("torch.")
    if not (audit.first or audit.every):
        return Check(name, "pass", "no update of the run will be audited (grpo.audit)", {"dtype": kind})
    if kind == "float32":
        return Check(name, "pass", "the run computes in float32, where signs/audit has audited it", {"dtype": kind})
    result = _audited(context, grpo, groups)
    evidence: dict[str, Any] = {"dtype": kind, "unexplained": result.record.values.get(metric.AUDIT_UNEXPLAINED, 0.0)}
    wrong = [event.message for event in result.events if event.code == WRONG]
    if wrong:
        ends = "the run would end" if audit.on_error == "stop" else "the run would be warned"
        return Check(name, "fail", f"at its first audited update {ends}: {'; '.join(wrong)}", evidence, _FIX)
    hidden = next((event.message for event in result.events if event.code == UNJUDGED), None)
    if hidden is not None:
        remedy = "free memory for a pass in float32, or set model.dtype: float32; the run goes on either way"
        return Check(name, "warn", hidden, evidence, remedy)
    how = "its own gradient, and a few samples in float32 beside it"
    return Check(name, "pass", f"the audit of the first updates can judge signs in {kind}: {how}", evidence)


def _audited(context: PreflightContext, grpo: Grpo, groups: Sequence[Group]) -> StepResult:
    """One audited step on rollouts with contrast, some way from the reference, so that the KL has a gradient."""
    if _has_kl_penalty(context, grpo):
        context.policy.keep_reference(trained=False)
    try:
        with nudged(context.policy, 0.2):
            return grpo_trial(context, grpo, contrasted(groups), audited=True).result
    finally:
        _forget(context)


def _policy(context: PreflightContext, grpo: Grpo, groups: Sequence[Group]) -> Check:
    """An update on rewards alone makes rewarded rollouts likelier."""
    told = contrasted(groups)
    grpo_trial(context, _only(grpo), told)
    by_sequence = grpo.loss.aggregation == "sequence_mean"

    def measure() -> float:
        total = 0.0
        for group in told:
            mean = fmean(group.rewards)
            for rollout in group.rollouts:
                told_t = torch.cat([_told(context, turn) for turn in rollout.turns])
                likelihood = told_t.mean() if by_sequence else told_t.sum()
                total += (rollout.reward - mean) * float(likelihood)
        return total

    return _tried(context, "signs/reward", measure, "likelihood of rewarded rollouts against the others", rises=True)


def _entropy(context: PreflightContext, grpo: Grpo, groups: Sequence[Group]) -> Check:
    """An update on the bonus alone raises entropy."""
    recipe = _only(grpo).model_copy(update={"entropy": grpo.entropy})
    told = contrasted(groups, flat=True)
    grpo_trial(context, recipe, told)

    def measure() -> float:
        turns = [turn for group in told for rollout in group.rollouts for turn in rollout.turns]
        return sum(float(_entropy_of(context, turn)) for turn in turns) / sum(len(t.completion_ids) for t in turns)

    return _tried(context, "signs/entropy", measure, "mean token entropy", rises=True)


def _kl(context: PreflightContext, grpo: Grpo, groups: Sequence[Group]) -> Check:
    """Away from the reference, an update on the KL penalty alone leads back to it."""
    recipe = _only(grpo).model_copy(update={"kl": grpo.kl})
    told = contrasted(groups, flat=True)
    turns = [t for g in told for r in g.rollouts for t in r.turns]
    context.policy.keep_reference(trained=False)
    start = [_told(context, turn) for turn in turns]
    squared = grpo.kl.estimator == "k2" or grpo.kl.gradient == "k2"
    exact = squared or (grpo.kl.estimator == "k3" and grpo.kl.gradient == "plain")

    def measure() -> float:
        gaps = torch.cat([_told(context, turn) - q for turn, q in zip(turns, start, strict=True)])
        return float((gaps.square() / 2 if squared else torch.expm1(-gaps) + gaps).mean())

    try:
        with nudged(context.policy, 0.3):
            grpo_trial(context, recipe, told)
            severity: Status = "fail" if exact else "warn"
            what = "divergence from the reference"
            return _tried(context, "signs/kl", measure, what, rises=False, severity=severity)
    finally:
        _forget(context)


def _tried(
    context: PreflightContext,
    name: str,
    measure: Callable[[], float],
    what: str,
    *,
    rises: bool,
    severity: Status = "fail",
) -> Check:
    """Move against the gradient that the trainer left, and see which way a number goes."""
    along = gradient(context.policy)
    context.policy.model.zero_grad()
    if not any(g is not None and bool(g.abs().max() > 0) for g in along):
        message = f"an update meant for the {what} has no gradient at all"
        return Check(name, "fail", message, {}, "look for a detached tensor, or a mask that is empty")
    with torch.no_grad():
        before = measure()
        size, after = _SIZES[0], _after(context, along, _SIZES[0], measure)
        right = (after > before) == rises
        # A policy that is sure of nearly every token turns within a step that is too long to say what its slope is.
        for smaller in () if right else _SIZES[1:]:
            size, after = smaller, _after(context, along, smaller, measure)
            if right := after > before if rises else after < before:
                break
    evidence = {"before": before, "after": after, "step": f"{size:g} of the weights' norm"}
    wrong = None
    if not right:
        goes, should = ("falls", "rise") if rises else ("rises", "fall")
        wrong = f"along this term's own update the {what} {goes} from {before:.5g} to {after:.5g}, and should {should}"
    return judged(
        name,
        wrong,
        f"its own update moves the {what} from {before:.5g} to {after:.5g}",
        evidence,
        _FIX,
        severity=severity,
    )


def _after(
    context: PreflightContext, along: Sequence[torch.Tensor | None], size: float, measure: Callable[[], float]
) -> float:
    """Measure a step away against a gradient."""
    with stepped(context.policy, along, size):
        return measure()


def _only(grpo: Grpo) -> Grpo:
    """Return the recipe with the reward term alone."""
    off = {
        "kl": Kl(),
        "entropy": grpo.entropy.model_copy(update={"coef": 0.0}),
        "loss": grpo.loss.model_copy(update={"top_entropy": None, "importance": None}),
        "mask_truncated": False,
    }
    if not grpo.advantage.make().aims_at_mean:
        off["advantage"] = Advantage()
    return grpo.model_copy(update=off)


@torch.no_grad()
def _told(context: PreflightContext, turn: Turn) -> torch.Tensor:
    return plain.logprobs(context.policy, turn.context_ids, turn.completion_ids, context.controls.temperature or 1.0)


@torch.no_grad()
def _entropy_of(context: PreflightContext, turn: Turn) -> torch.Tensor:
    """Sum of the token entropies of a turn."""
    table = plain.logits(context.policy, turn.context_ids, turn.completion_ids) / (context.controls.temperature or 1.0)
    logp = table.log_softmax(-1)
    return -(logp.exp() * logp).sum()


def _forget(context: PreflightContext) -> None:
    context.policy.drop_reference()
    if context.policy.lora and REFERENCE_ADAPTER in context.policy.model.peft_config:
        context.policy.model.delete_adapter(REFERENCE_ADAPTER)
