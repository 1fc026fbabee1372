"""The weights over tasks in force, and the rule that moves them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levelhead import metrics as metric
from levelhead.errors import InputError
from levelhead.objective.task_weights import TaskFacts, TaskWeights, WeightsState
from levelhead.tasks.base import Task


class WeightsInForce:
    """What each task's objective counts for at this step.

    Args:
        rule: What moves the weights.
        facts: Of the tasks.

    Raises:
        ValueError: The rule begins with what are no weights.
    """

    def __init__(self, rule: TaskWeights, facts: TaskFacts) -> None:
        self._rule, self._facts = rule, facts
        self._state = rule.begin(facts)

    @property
    def moves(self) -> bool:
        """Whether they can come to differ from the recipe's."""
        return self._rule.moves

    @property
    def weights(self) -> dict[str, float]:
        """Of each task, adding up to 1."""
        if not self.moves:
            return dict(self._facts.shares)
        total = sum(self._state.weights.values())
        return {task: self._state.weights[task] / total for task in self._facts.shares}

    def metrics(self) -> dict[str, float]:
        """The weights and multipliers in force, as metrics; none where they never move."""
        if not self.moves:
            return {}
        values = {metric.TASK_WEIGHT.of(task): weight for task, weight in self.weights.items()}
        multipliers = self._rule.multipliers(self._state)
        return values | {metric.MULTIPLIER.of(task): value for task, value in multipliers.items()}

    def update(self, values: Mapping[str, float]) -> None:
        """Let the rule follow a step's metrics."""
        if self.moves:
            names = {task: metric.REWARD_BY_TASK.of(task) for task in self._facts.shares}
            rewards = {task: values[name] for task, name in names.items() if name in values}
            self._state = self._rule.step(self._state, self._facts, rewards)

    def state_dict(self) -> dict[str, Any]:
        """State of the rule; nothing where it has none."""
        return {"task_weights": self._state.to_json()} if self.moves else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; a rule that the state knows nothing of begins afresh."""
        if self.moves and "task_weights" in state:
            self._state = WeightsState.from_json(state["task_weights"])


def facts_of(shares: Mapping[str, float], tasks: Mapping[str, Task] | None = None) -> TaskFacts:
    """Return what is known of tasks before the first batch.

    Args:
        shares: ``tasks[].weight`` by name.
        tasks: By name; without them nothing is declared.
    """
    total = sum(shares.values())
    ranges = {name: task.reward_range for name, task in (tasks or {}).items()}
    most = {name: float(bounds[1]) for name, bounds in ranges.items() if bounds is not None}
    return TaskFacts({task: weight / total for task, weight in shares.items()}, most)


def check_task_weights(rule: TaskWeights, facts: TaskFacts) -> None:
    """Refuse a rule that does not fit the tasks.

    Raises:
        InputError: It does not.
    """
    try:
        rule.check(facts)
        rule.begin(facts)
    except ValueError as error:
        raise InputError(f"grpo.task_weights.{error}") from None
