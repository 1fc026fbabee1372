"""Merging the gradients of several tasks that share one policy."""

from levelhead.objective.surgery.buffers import gramian
from levelhead.objective.surgery.merger import GradientMerger, MergeReport
from levelhead.objective.surgery.monitor import ConflictMonitor
from levelhead.objective.surgery.weights import AGGREGATORS, Aggregator, weights

__all__ = ["AGGREGATORS", "Aggregator", "ConflictMonitor", "GradientMerger", "MergeReport", "gramian", "weights"]
