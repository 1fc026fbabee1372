"""Reward shaping: what is done to rewards before they become advantages, one :class:`RewardShaping` a task.

The order is fixed: length penalty, running z-score, scale, clip.  Everything but a length penalty maps equal rewards to
equal rewards, so a group without contrast stays without; a clip can take contrast away, and then says so through
``has_signal_g``.  Group estimators that divide by a standard deviation undo scale and z-score; the others feel them,
which is what puts several tasks on one footing.  Arrays are numpy arrays or tensors alike.
"""

from levelhead.objective.advantages.estimator import RewardBatch
from levelhead.objective.registry import registry
from levelhead.objective.shaping.base import LengthPenalty, Shaper
from levelhead.objective.shaping.length import GroupRelative, Overlong, PerToken
from levelhead.objective.shaping.pipeline import RewardShaping
from levelhead.objective.shaping.zscore import RunningMoments, ZScore, winsorise

SHAPERS = registry(
    "levelhead.objective.shaping",
    Shaper,
    [
        "length:Overlong",
        "length:PerToken",
        "length:GroupRelative",
    ],
)
"""Every kind of ``tasks[].shaping.length`` by the name that it has in a recipe."""

__all__ = [
    "SHAPERS",
    "GroupRelative",
    "LengthPenalty",
    "Overlong",
    "PerToken",
    "RewardBatch",
    "RewardShaping",
    "RunningMoments",
    "Shaper",
    "ZScore",
    "winsorise",
]
