"""Identities between the numbers of one update: KL at the start, coefficients, clip shares and ratios."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from levelhead import metrics as metric
from levelhead.objective.controllers import Controller, Fixed
from levelhead.policy.rounding import Tolerance
from levelhead.recipe import Recipe
from levelhead.recipe.training import Grpo
from levelhead.records import CoefficientOverrides
from oracle.optimizer_steps import EXACT
from oracle.violation import Violation, close

SURE = 6.0
"""Standard errors by which an audited coefficient must be off."""
OFF = 0.02
"""Relative difference of an audited coefficient from the one that was meant, at least, to count."""
SEEN = 1e-3
"""Share of the gradient's norm that the difference must make up."""
SLACK = 1e-4
"""Rounding of a mean over tokens in float32."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What an update has said of itself, and what it was to be.

    Attributes:
        recipe: The whole recipe.
        grpo: Its ``grpo`` section.
        values: Metrics of the update.
        overrides: Where a guard has put them.
        first: Whether no update of the stage came before: policy and reference are the same.
        at_old_policy: Whether the weights at hand are the old policy of the loss.
        present: Tasks that are part of the update.
        tolerance: What rounding explains of a log-probability.
        gaps: Mean absolute difference of policy and reference, by task, in nats a token.
        kl_coefs: Coefficients in force.
        weights: Of the tasks in force, where they move; empty where they are the recipe's.
        merged: Weight of each task's gradient in the merged one; empty where they were not kept apart.
        strengths: Norm of each term's natural gradient, against that of the whole, where the update was audited.
        clip_factor: By which the gradient was scaled down.
    """

    recipe: Recipe
    grpo: Grpo
    values: Mapping[str, float]
    overrides: CoefficientOverrides
    first: bool
    at_old_policy: bool
    present: tuple[str, ...]
    tolerance: Tolerance
    gaps: Mapping[str, float] = field(default_factory=dict)
    kl_coefs: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    merged: Mapping[str, float] = field(default_factory=dict)
    strengths: Mapping[str, float] = field(default_factory=dict)
    clip_factor: float = 1.0


def kl_at_start(numbers: Numbers) -> Iterator[Violation]:
    """Before the first update the policy is its reference: their KL is 0, at the temperature of the samples."""
    if not numbers.first:
        return
    drift = {name: value for name, value in numbers.values.items() if name.startswith(metric.KL_BY_TASK.prefix)}
    drift |= {f"|policy - reference|/{task}": gap for task, gap in numbers.gaps.items()}
    most = numbers.tolerance.mean
    name, value = max(drift.items(), key=lambda item: abs(item[1]), default=("", 0.0))
    if abs(value) > most:
        text = (
            f"before the first update {name} is {value:.4g} nats a token, where policy and reference are the same "
            f"weights and rounding explains {most:.1g}: other weights, another temperature, context or mode"
        )
        yield Violation("kl-at-start", text, {**drift, "rounding": most})


def coefficients(numbers: Numbers) -> Iterator[Violation]:
    """Coefficients in force are the recipe's, as far as its controllers leave them, times what the guard has turned."""
    grpo, overrides, values = numbers.grpo, numbers.overrides, numbers.values
    seen, wanted = values.get(metric.ENTROPY_COEF), grpo.entropy.coef * overrides.entropy + overrides.entropy_bonus
    if isinstance(grpo.entropy.controller, Fixed) and seen is not None and not close(seen, wanted, EXACT):
        yield _coefficient(metric.ENTROPY_COEF, seen, wanted)
    for section in numbers.recipe.tasks:
        task = section.title
        seen = numbers.kl_coefs.get(task)
        coef, controller = grpo.kl.of_task(section.kl, section.kl_controller)
        if seen is None or not isinstance(controller, Controller):  # one of the user's own may go anywhere
            continue
        low, high = controller.bounds
        if isinstance(controller, Fixed):
            if not close(seen, coef * overrides.kl, EXACT):
                yield _coefficient(metric.KL_COEF.of(task), seen, coef * overrides.kl)
        elif not low * overrides.kl * (1 - EXACT) <= seen <= high * overrides.kl * (1 + EXACT):
            text = f"{metric.KL_COEF.of(task)} is {seen:.6g}, outside of its controller's bounds"
            yield Violation("coefficient", text, {"seen": seen, "coef_min": low, "coef_max": high})


def _coefficient(name: str, seen: float, wanted: float) -> Violation:
    text = f"{name} is {seen:.6g}, and the recipe gives {wanted:.6g}"
    return Violation("coefficient", text, {"name": name, "seen": seen, "recipe": wanted})


def audited(numbers: Numbers) -> Iterator[Violation]:
    """A term enters the gradient with the recipe's coefficient, the task's share, and the factors of merge and clip."""
    weights = numbers.weights or {section.title: section.weight for section in numbers.recipe.tasks}
    whole = sum(weight for task, weight in weights.items() if task in numbers.present)
    shares = {task: weight / whole for task, weight in weights.items()} if whole else {}
    entropy = numbers.values.get(metric.ENTROPY_COEF, 0.0)
    for label, strength in numbers.strengths.items():
        name, _, task = label.partition("/")
        seen, error = (numbers.values.get(name.of(label)) for name in (metric.AUDIT_COEF, metric.AUDIT_COEF_ERROR))
        if seen is None or error is None or task not in shares:
            continue
        coef = {"policy": 1.0, "entropy": entropy, "kl": numbers.kl_coefs.get(task, 0.0)}.get(name)
        if coef is None:
            continue
        by_task = numbers.grpo.merge.memory == "low" or name == "policy"
        merged = numbers.merged.get(task, 1.0) if by_task else 1.0
        wanted = coef * shares[task] * merged * numbers.clip_factor
        off = abs(seen - wanted)
        if off > max(SURE * error, OFF * abs(wanted)) and off * strength > SEEN:
            text = (
                f"the gradient holds {label} with coefficient {seen:.4g}, and {wanted:.4g} is meant: {coef:.4g} times "
                f"the task's share {shares[task]:.3g}, its merge weight {merged:.3g} and {numbers.clip_factor:.3g} by "
                f"clipping; {_times(seen, wanted)}"
            )
            yield Violation("audited-coefficient", text, {"term": label, "seen": seen, "meant": wanted, "error": error})


def _times(seen: float, wanted: float) -> str:
    return f"{seen / wanted:.4g} times as large" if wanted else "it is to be 0"


def clip_shares(numbers: Numbers) -> Iterator[Violation]:
    """Shares of clipped tokens fit the ratios that are logged beside them, and on policy nothing is clipped."""
    values, loss = numbers.values, numbers.grpo.loss.make()
    if metric.RATIO_MAX not in values:
        return
    mean, most = values[metric.RATIO_MEAN], values[metric.RATIO_MAX]
    shown = {name: v for name, v in values.items() if name.startswith(("ratio/", "clip_ratio/"))}
    low, high = (values.get(name, 0.0) for name in (metric.CLIP_LOW, metric.CLIP_HIGH))
    region = values.get(metric.CLIP_REGION, low + high)
    clip_low, clip_high = loss.clip_range
    floor, ceiling = 1 - clip_low * numbers.overrides.clip, 1 + clip_high * numbers.overrides.clip
    wrong = None
    if not all(math.isfinite(v) for v in shown.values()):
        return  # the gradient is not finite either, and the update is skipped
    if numbers.at_old_policy and max(abs(mean - 1), abs(most - 1), low, high) > SLACK:
        wrong = "the weights at hand are the old policy, so that every ratio is 1 and nothing is clipped"
    elif mean > most * (1 + SLACK):
        wrong = "a mean ratio is no larger than the largest"
    elif not close(region, low + high, SLACK, SLACK) or not 0 <= region <= 1 + SLACK:
        wrong = "clipped tokens are clipped below or above, and none both ways"
    elif high > 0 and most < ceiling - SLACK:
        wrong = f"tokens count as clipped above {ceiling:.4g}, and no ratio is that large"
    elif high * ceiling > mean * (1 + SLACK) + SLACK:
        wrong = f"{high:.1%} of the tokens cannot lie above {ceiling:.4g} with this mean"
    elif loss.clips_tokens and mean > low * floor + (1 - low) * most + SLACK * max(most, 1):
        wrong = f"{low:.1%} of the tokens cannot lie below {floor:.4g} with this mean"
    if wrong is not None:
        seen = ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
        yield Violation("clip-share", f"{wrong}; logged: {seen}", shown)


UPDATE: tuple[Callable[[Numbers], Iterator[Violation]], ...] = (kl_at_start, coefficients, audited, clip_shares)
"""Identities between the numbers of one update."""
