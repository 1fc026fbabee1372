"""A GRPO step and an SFT step by the run's own trainers, on known rollouts, with weights that stay."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from levelhead.policy.policy import Policy
from levelhead.preflight.listening import Listener, listening
from levelhead.preflight.trial import WHOLE, FrozenUpdater, Replay, cut_to, rewarded_with
from levelhead.recipe.objective import Audit
from levelhead.recipe.training import Grpo
from levelhead.records import Group, Rollout
from levelhead.training.grpo import GrpoTrainer
from levelhead.training.optim import Updater
from levelhead.training.prepare import make_objective
from levelhead.training.step_result import StepResult
from levelhead.training.stream import PromptStream
from oracle.context import PreflightContext


def contrasted(groups: Sequence[Group], flat: bool = False) -> list[Group]:
    """Return groups whose rewards are known: half 1 and half 0 by length, or all 0 where ``flat``.

    Shorter rollouts win, so that the direction of the update is one that no accident of order explains.
    """
    made = []
    for group in groups:
        order = sorted(range(len(group.rollouts)), key=lambda i: (group.rollouts[i].length, i))
        half = set(order[: len(order) // 2])
        rollouts = [rewarded_with(r, 0.0 if flat or i not in half else 1.0) for i, r in enumerate(group.rollouts)]
        made.append(replace(group, rollouts=tuple(rollouts)))
    return made


def differing(group: Group) -> list[Rollout]:
    """Return a group's rollouts without repeats, shortest first; where all are alike, half of one and the whole.

    A policy that is sure of its answer gives the same one to all of a group.  Rewards for equal answers cancel, and a
    trial of such groups alone would measure nothing.
    """
    by_answer = {tuple(turn.completion_ids for turn in rollout.turns): rollout for rollout in group.rollouts}
    rollouts = sorted(by_answer.values(), key=lambda rollout: rollout.length)
    if len(rollouts) > 1 or len(group.rollouts) < 2:
        return rollouts
    half = cut_to(rollouts[0], 0.5, None, WHOLE)
    return [half, *rollouts] if half.length < rollouts[0].length else list(group.rollouts)


@dataclass(frozen=True, slots=True)
class Trial:
    """What a GRPO step came to.

    Attributes:
        result: As the trainer returned it.
        listener: Where its loss came from.
        groups: What it trained on.
        seconds: Packing, forward, backward.
    """

    result: StepResult
    listener: Listener
    groups: Sequence[Group]
    seconds: float


def grpo_trial(
    context: PreflightContext,
    config: Grpo,
    groups: Sequence[Group],
    updater: Updater | None = None,
    *,
    audited: bool = False,
) -> Trial:
    """Do one GRPO step on the given groups; the gradient is left in the parameters, the weights are not changed."""
    context.policy.model.zero_grad()
    changes = {
        "ahead": 0,
        "updates_per_batch": 1,
        "epochs": 1,
        "audit": Audit(first=int(audited), every=0, on_error="warn"),
        "dynamic_sampling": 0,  # sampling again would hand out the same groups twice
    }
    config = config.model_copy(update=changes)
    tasks = context.setup.tasks
    objective, _ = make_objective(context.recipe, config)
    trainer = GrpoTrainer(
        policy=context.policy,
        collector=Replay(context.collector(), groups),
        stream=PromptStream(list(tasks.values()), [context.setup.weights[name] for name in tasks], context.seed),
        objective=objective,
        updater=updater or FrozenUpdater(context.policy.parameters, config.optimizer, config.steps),
        config=config,
        seed=context.seed,
    )
    start = time.perf_counter()
    with listening(context.policy) as listener:
        result = trainer.step(1)
    return Trial(result, listener, groups, time.perf_counter() - start)


def gradient(policy: Policy) -> list[Tensor | None]:
    """Return a copy of the gradient in the parameters."""
    return [None if p.grad is None else p.grad.detach().clone() for p in policy.parameters]


@contextlib.contextmanager
def stepped(policy: Policy, along: Sequence[Tensor | None], size: float) -> Iterator[None]:
    """Move the weights against a gradient by a fraction of their own norm inside, and restore them exactly."""
    moved = [(p, g) for p, g in zip(policy.parameters, along, strict=True) if g is not None]
    before = [p.detach().clone() for p, _ in moved]
    norm = torch.stack([g.float().norm() for _, g in moved]).norm() if moved else torch.ones(())
    weight = torch.stack([p.detach().float().norm() for p, _ in moved]).norm() if moved else torch.ones(())
    scale = float(size * weight.clamp(min=1.0) / norm.clamp(min=1e-30))
    try:
        with torch.no_grad():
            for parameter, grad in moved:
                parameter.sub_(scale * grad)
        yield
    finally:
        with torch.no_grad():
            for (parameter, _), old in zip(moved, before, strict=True):
                parameter.copy_(old)
