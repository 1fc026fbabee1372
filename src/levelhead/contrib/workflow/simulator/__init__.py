"""The simulator: a documented stochastic model of operators, sampled and in expectation."""

from levelhead.contrib.workflow.simulator.choose import (
    Expected,
    bars,
    best_fixed_workflow,
    best_workflow,
    candidates,
    expected,
    varied_workflows,
)
from levelhead.contrib.workflow.simulator.executor import SimulatedExecutor

__all__ = [
    "Expected",
    "SimulatedExecutor",
    "bars",
    "best_fixed_workflow",
    "best_workflow",
    "candidates",
    "expected",
    "varied_workflows",
]
