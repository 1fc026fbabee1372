"""Policy losses: surrogates by name, and their aggregation."""

from levelhead.objective.losses.aggregate import Aggregation, aggregate, count
from levelhead.objective.losses.policy import LOSSES, PolicyLoss, policy_loss

__all__ = ["LOSSES", "Aggregation", "PolicyLoss", "aggregate", "count", "policy_loss"]
