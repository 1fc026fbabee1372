"""Advice: settings that lie outside what is known to hold, each with its source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from levelhead.preflight.context import PreflightContext
from levelhead.preflight.result import Check
from levelhead.recipe.task import TaskSection
from levelhead.recipe.training import Grpo, Sft
from levelhead.training.prepare import name_of

LARGE = 100_000_000
"""Parameters from which published learning rates for language models apply."""
_GRPO_RATES = "DeepSeekMath (Shao et al. 2024) and DAPO (Yu et al. 2025) train all weights at 1e-6"
_LORA_RATES = "LoRA Without Regret (Schulman et al. 2025): LoRA takes about ten times the rate of full training"
_GROUPS = "DeepSeekMath draws 64 rollouts a prompt, DAPO 16; TRL's default is 8"
_REUSE = "PPO-style clipping corrects small steps only; DAPO makes 16 updates a batch at 1e-6, TRL's default is 1"


_COEFFICIENTS = (
    "DeepSeekMath uses a KL coefficient of 0.04 and DAPO none; entropy bonuses of 0.001 to 0.01 are usual (PPO, "
    "Schulman et al. 2017, takes 0.01)"
)
_LARGEST = {"kl": 1.0, "entropy": 0.1}


def check_advice(context: PreflightContext) -> Iterator[Check]:
    """Compare learning rates, group size and reuse with published runs."""
    size = sum(p.numel() for p in context.policy.model.parameters())
    lora = context.policy.lora
    if context.grpo is not None:
        yield _grpo_rate(context.grpo, size, lora)
        yield _groups(context.grpo)
        yield _reuse(context.grpo)
        yield _coefficients(context.grpo, context.recipe.tasks)
    if context.recipe.sft is not None:
        yield _sft_rate(context.recipe.sft, size, lora)


def _grpo_rate(grpo: Grpo, size: int, lora: bool) -> Check:
    rate = grpo.optimizer.learning_rate
    source = _LORA_RATES if lora else _GRPO_RATES
    low, high = (1e-6, 2e-4) if lora else (1e-7, 1e-5)
    evidence = {"learning_rate": rate, "parameters": size, "lora": lora, "source": source, "known_to_hold": [low, high]}
    name = "advice/grpo-learning-rate"
    if size < LARGE:
        return Check(
            name, "pass", f"{rate:g} for {size / 1e6:.1f}M parameters; published rates are for larger ones", evidence
        )
    if low <= rate <= high:
        return Check(name, "pass", f"{rate:g} lies in what is known to hold ({low:g} to {high:g})", evidence)
    side = "above" if rate > high else "below"
    message = f"learning rate {rate:g} is {side} what is known to hold ({low:g} to {high:g}): {source}"
    return Check(
        name,
        "warn",
        message,
        evidence,
        f"set grpo.optimizer.learning_rate to {(low * high) ** 0.5:.0e} and go from there",
    )


def _sft_rate(sft: Sft, size: int, lora: bool) -> Check:
    rate = sft.optimizer.learning_rate
    high = 1e-3 if lora else 1e-4
    evidence = {"learning_rate": rate, "parameters": size, "lora": lora, "known_to_hold_up_to": high}
    name = "advice/sft-learning-rate"
    if size < LARGE or rate <= high:
        return Check(name, "pass", f"{rate:g} for {size / 1e6:.1f}M parameters", evidence)
    fix = f"set sft.optimizer.learning_rate to {high / 10:g} and go from there"
    return Check(
        name, "warn", f"learning rate {rate:g} is above {high:g}; models of this size forget at it", evidence, fix
    )


def _groups(grpo: Grpo) -> Check:
    groups = grpo.batch_size // grpo.group_size // grpo.updates_per_batch
    evidence = {"group_size": grpo.group_size, "groups_an_update": groups, "source": _GROUPS}
    name = "advice/groups"
    if grpo.group_size < 4:
        return Check(
            name, "warn", f"K = {grpo.group_size} is small: {_GROUPS}", evidence, "set grpo.group_size to 8 or more"
        )
    if groups < 2:
        message = "one group an update: every update follows a single prompt"
        return Check(name, "warn", message, evidence, "raise grpo.batch_size to several groups")
    return Check(name, "pass", f"{groups} groups of {grpo.group_size} an update", evidence)


def _reuse(grpo: Grpo) -> Check:
    updates = grpo.updates_per_batch * grpo.epochs
    evidence = {"updates_a_batch": updates, "source": _REUSE}
    if updates > 16:
        message = f"{updates} updates a rollout batch: {_REUSE}"
        return Check("advice/reuse", "warn", message, evidence, "lower grpo.updates_per_batch or grpo.epochs")
    return Check("advice/reuse", "pass", f"{updates} update{'s' if updates > 1 else ''} a rollout batch", evidence)


def _coefficients(grpo: Grpo, tasks: Sequence[TaskSection]) -> Check:
    """Compare the coefficients that tasks really start from, each by the key that sets it, with published ones."""
    coefficients = {"grpo.entropy.coef": grpo.entropy.coef}
    if any(task.kl is None for task in tasks):
        coefficients["grpo.kl.coef"] = grpo.kl.coef
    coefficients |= {f"tasks.{i}.kl": task.kl for i, task in enumerate(tasks) if task.kl is not None}
    largest = {key: _LARGEST["entropy" if key == "grpo.entropy.coef" else "kl"] for key in coefficients}
    coefs = [task.kl if task.kl is not None else grpo.kl.coef for task in tasks]
    evidence = {
        "kl_coef": grpo.kl.coef,
        "entropy_coef": grpo.entropy.coef,
        "kl_coefs": {name_of(task): coef for task, coef in zip(tasks, coefs, strict=True)},
        "source": _COEFFICIENTS,
    }
    name = "advice/coefficients"
    high = [key for key, value in coefficients.items() if value > largest[key]]
    if not high:
        low, top = min(coefs), max(coefs)
        spread = f"{top:g}" if low == top else f"{low:g} to {top:g} by task"
        return Check(name, "pass", f"KL {spread}, entropy {grpo.entropy.coef:g}", evidence)
    summary = " and ".join(f"{key} {coefficients[key]:g}" for key in high)
    fix = " and ".join(f"set {key} to {largest[key] / 10:g} or less" for key in high)
    return Check(name, "warn", f"{summary}: such a term drowns the reward; {_COEFFICIENTS}", evidence, fix)
