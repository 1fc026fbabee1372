"""Throughput: seconds a step, by part, from what the checks themselves took."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead.preflight.context import PreflightContext
from levelhead.preflight.result import Check


def check_throughput(context: PreflightContext) -> Iterator[Check]:
    """Scale the parts of a small step to the recipe's batch."""
    grpo = context.grpo
    if grpo is None or context.drawn.error is not None:
        return
    cost = context.drawn.cost
    rollouts, train = len(context.rollouts), context.train_seconds
    if not rollouts or train is None:
        return
    scale = grpo.batch_size / rollouts
    longer = grpo.sampling.max_new_tokens / context.controls.max_new_tokens
    seconds = {
        "sample": cost.sample_s * max(1.0, scale) * longer,
        "score": cost.score_s * scale,
        "env": cost.env_s * scale,
        "train": train * scale * longer * grpo.epochs,
    }
    step = sum(seconds.values())
    evidence = {
        "seconds_a_step": {part: round(value, 2) for part, value in seconds.items()},
        "measured_on": f"{rollouts} rollouts; a larger batch is sampled at less than proportional cost",
        "steps": grpo.steps,
        "hours_in_all": round(step * grpo.steps / 3600, 2),
    }
    message = (
        f"at most about {step:.1f} s a GRPO step ("
        + ", ".join(f"{part} {value:.1f}" for part, value in seconds.items())
        + f"), {step * grpo.steps / 60:.0f} min for {grpo.steps} steps"
    )
    yield Check("throughput/step", "pass", message, evidence)
