"""The old name of :mod:`levelhead.objective.aggregation`, for aggregators of users that import their base from here."""

from __future__ import annotations

from levelhead.objective.aggregation import AGGREGATORS, Aggregator, make_aggregator

__all__ = ["AGGREGATORS", "Aggregator", "make_aggregator"]
