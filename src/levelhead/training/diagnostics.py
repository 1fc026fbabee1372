"""What the first steps look like from close by: the boundary, the ending and the distribution of a few samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

from levelhead.policy.policy import Policy
from levelhead.recipe.training import Grpo, Logging
from levelhead.records import Group, Rollout, Turn
from levelhead.tasks.base import Task
from levelhead.text.evidence import boundary, count
from levelhead.training.rundir import RunDir
from levelhead.training.step_result import StepResult

NAME = "diagnostics.json"
STEPS = 3
"""First GRPO steps that are looked at."""
SAMPLES = 2
"""Rollouts of a task."""
TOKENS = 256
"""Completion tokens of a sample whose distribution is computed."""


def diagnose(policy: Policy, groups: Sequence[Group], step: int, temperature: float) -> dict[str, Any]:
    """Return one entry of ``diagnostics.json``: by task, lengths, endings and a few samples.

    Entropy, top probability and the gap between the two largest logits are those of the weights after the step, at
    the sampling temperature, over the first :data:`TOKENS` tokens of a completion.

    Args:
        policy: After the step.
        groups: What the step trained on.
        step: Its number, from 1.
        temperature: Of the draws.
    """
    by_task: dict[str, list[Rollout]] = {}
    for group in groups:
        by_task.setdefault(group.prompt.task, []).extend(group.rollouts)
    tasks = {task: _of_task(policy, rollouts, temperature) for task, rollouts in by_task.items() if rollouts}
    return {"step": step, "temperature": temperature, "tasks": tasks}


def note_first_steps(folder: RunDir, policy: Policy, groups: Sequence[Group], step: int, config: Grpo) -> None:
    """Add a step to ``diagnostics.json`` of a run, if it is one of the first; a step done again replaces itself."""
    if step <= STEPS:
        temperature = config.sampling.at(step - 1, config.steps).temperature
        before = [entry for entry in folder.read_json(NAME) or [] if entry["step"] < step]
        folder.write_json(NAME, [*before, diagnose(policy, groups, step, temperature)])


def save_sample(folder: RunDir, log: Logging, result: StepResult, tasks: Mapping[str, Task]) -> list[dict[str, Any]]:
    """Write the first groups of a step, if the recipe wants to see its rollouts; returns what is written."""
    step, every = result.record.step, log.rollouts_every
    if not every or (step % every and step != 1):
        return []
    size = max(len(result.groups[0].rollouts), 1)
    sampled_groups = result.groups[: max(1, log.rollouts // size)]
    return folder.save_rollouts(f"grpo-{step:06d}", "grpo", step, sampled_groups, tasks, result.advantages)


def _of_task(policy: Policy, rollouts: Sequence[Rollout], temperature: float) -> dict[str, Any]:
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    prompts, answers = [len(t.context_ids) for t in turns], [len(t.completion_ids) for t in turns]
    examples = [rollouts[0], rollouts[-1]][: min(SAMPLES, len(rollouts))]
    return {
        "turns": len(turns),
        "prompt_tokens": {"min": min(prompts), "mean": fmean(prompts), "max": max(prompts)},
        "completion_tokens": {"min": min(answers), "mean": fmean(answers), "max": max(answers)},
        "finish": {finish: sum(t.finish == finish for t in turns) for finish in ("stop", "length", "env")},
        "end_of_turn_in_completions": sum(count(policy.codec, t.completion_ids).stop for t in turns),
        "samples": [_sample(policy, rollout, temperature) for rollout in examples],
    }


def _sample(policy: Policy, rollout: Rollout, temperature: float) -> dict[str, Any]:
    turn, codec = rollout.turns[0], policy.codec
    shown = boundary(codec, turn.context_ids, turn.completion_ids)
    sides = {"context_end": shown.context_end, "completion_start": shown.completion_start}
    tokens = {**sides, "completion_end": shown.completion_end}
    inside = count(codec, turn.context_ids)
    return {
        "prompt_id": rollout.prompt_id,
        "reward": rollout.score.total if rollout.score else None,
        "finish": turn.finish,
        **{name: [{"id": token.id, "text": token.text} for token in side] for name, side in tokens.items()},
        "completion": (rollout.text[0] if rollout.text else codec.decode(turn.completion_ids))[:400],
        "prompt_counts": {"total": inside.total, "stop": inside.stop, "padding": inside.padding},
        "logp_mean": fmean(turn.logprobs),
        **_distribution(policy, turn, temperature),
    }


@torch.no_grad()
def _distribution(policy: Policy, turn: Turn, temperature: float) -> dict[str, float]:
    """Entropy (nats), top probability and gap of the two largest logits, at the first token and on average."""
    completion = turn.completion_ids[:TOKENS]
    ids = torch.tensor([[*turn.context_ids, *completion]], device=policy.device)
    output = policy.forward(policy.base, input_ids=ids, use_cache=False, logits_to_keep=len(completion) + 1)
    logits_tv = output.logits[0, :-1].float() / (temperature or 1.0)
    logp_tv = logits_tv.log_softmax(-1)
    entropy_t = -(logp_tv.exp() * logp_tv).sum(-1)
    best_t2 = logits_tv.topk(2, dim=-1).values
    numbers_t = {
        "entropy": entropy_t,
        "top_probability": logp_tv.max(-1).values.exp(),
        "gap": best_t2[:, 0] - best_t2[:, 1],
    }
    first = {f"{name}_first": float(value_t[0]) for name, value_t in numbers_t.items()}
    return first | {f"{name}_mean": float(value_t.mean()) for name, value_t in numbers_t.items()}
