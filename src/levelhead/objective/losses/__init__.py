"""Policy losses: surrogates by name, importance correction, and aggregation."""

from levelhead.objective.losses.aggregate import Aggregation, aggregate, count
from levelhead.objective.losses.importance import Correction, ImportanceWeights, importance_weights
from levelhead.objective.losses.options import DEFAULT_CLIP, default_clip
from levelhead.objective.losses.policy import LOSSES, PolicyLoss, policy_loss

__all__ = [
    "DEFAULT_CLIP",
    "LOSSES",
    "Aggregation",
    "Correction",
    "ImportanceWeights",
    "PolicyLoss",
    "aggregate",
    "count",
    "default_clip",
    "importance_weights",
    "policy_loss",
]
