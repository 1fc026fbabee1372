"""Advantages that the run's own estimator gives to made-up rewards."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from levelhead.preflight.context import PreflightContext
from levelhead.records import Group, Rollout, Score, Turn
from levelhead.training.prepare import make_objective


def advantages_of(context: PreflightContext, rewards: Sequence[float]) -> list[float]:
    """Return the advantage of each rollout of a group with these rewards, without shaping.

    Args:
        context: Its recipe has a ``grpo`` section.
        rewards: One per rollout; the rollouts have 3, 4, 5, ... tokens.
    """
    assert context.grpo is not None  # noqa: S101 - asked for with a grpo stage only
    objective, estimator = make_objective(context.recipe, context.grpo)
    task = next(iter(context.setup.tasks.values()))
    (prompt,) = itertools.islice(task.prompts("train", 0), 1)
    rollouts = []
    for i, reward in enumerate(rewards):
        zeros = (0.0,) * (i + 3)
        turn = Turn((0,), (0,) * (i + 3), zeros, zeros, "stop")
        rollouts.append(Rollout(prompt.id, (turn,), Score(reward, {"reward": reward})))
    group = Group(prompt, tuple(rollouts))
    advantages, _ = estimator.assign([group], None, objective.coefficients.kl)
    return [float(value) for value in advantages[0].values]
