"""Weights over tasks: what each task's objective counts for in the sum, fixed or following what is measured.

A rule is a class with its settings; its state is a small record, made to be saved with a checkpoint.
``step(state, facts, rewards)`` takes the mean reward of each task of the batch just trained on, and returns the state
whose ``weights`` the next update is taken with.
"""

from levelhead.objective.registry import registry
from levelhead.objective.task_weights.base import FixedWeights, TaskFacts, TaskWeights, WeightsState
from levelhead.objective.task_weights.constraint import Constraint
from levelhead.objective.task_weights.inverse_loss import InverseLoss

TASK_WEIGHTS = registry(
    "levelhead.objective.task_weights",
    TaskWeights,
    [
        "base:FixedWeights",
        "inverse_loss:InverseLoss",
        "constraint:Constraint",
    ],
)
"""Every rule by the name that it has in a recipe."""

__all__ = ["TASK_WEIGHTS", "Constraint", "FixedWeights", "InverseLoss", "TaskFacts", "TaskWeights", "WeightsState"]
