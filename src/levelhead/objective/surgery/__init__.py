"""Merging the gradients of several tasks that share one policy."""

from levelhead.objective.surgery.merger import GradientMerger, MergeReport
from levelhead.objective.surgery.weights import AGGREGATORS, weights

__all__ = ["AGGREGATORS", "GradientMerger", "MergeReport", "weights"]
