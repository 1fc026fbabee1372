"""What every rule for the weights over tasks is: its settings and how it moves them, in one class."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from levelhead.section import Section


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What a recipe and its tasks say before the first batch.

    Attributes:
        shares: ``tasks[].weight`` of each task, adding up to 1, in the recipe's order.
        most: The most reward of each task that declares one.
    """

    shares: Mapping[str, float]
    most: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WeightsState:
    """Where a rule stands.

    Attributes:
        weights: Of each task's objective in the coming update, relative to the others; above 0.
        memory: What the rule carries on, as a plain JSON value.
        steps: Batches seen so far.
    """

    weights: Mapping[str, float]
    memory: Any = None
    steps: int = 0

    def after(self, weights: Mapping[str, float], memory: Any = None) -> WeightsState:
        """Return the state after one more batch."""
        return WeightsState(weights, memory, self.steps + 1)

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain values."""
        return {**asdict(self), "weights": dict(self.weights)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> WeightsState:
        """Return the state that :meth:`to_json` wrote."""
        weights = {str(task): float(weight) for task, weight in record["weights"].items()}
        return cls(weights, record["memory"], int(record["steps"]))


class TaskWeights(Section):
    """A rule for the weights over tasks: its fields are its settings, :meth:`move` is its rule.

    A subclass is a whole rule; the docstring of a field is the documentation of its key.
    """

    name: ClassVar[str] = ""
    """Its ``kind`` in a recipe; a class of your own needs none."""
    moves: ClassVar[bool] = True
    """Whether weights can come to differ from the recipe's."""

    @property
    def tasks(self) -> Mapping[str, str]:
        """The tasks that its settings name, with the key of each."""
        return {}

    def check(self, facts: TaskFacts) -> None:
        """Refuse settings that do not fit the tasks.

        Raises:
            ValueError: They do not; begins with the key.
        """
        for task, key in self.tasks.items():
            if task not in facts.shares:
                raise ValueError(f"{key}: no task is called {task!r}; there are {', '.join(facts.shares)}")

    def first(self, facts: TaskFacts) -> WeightsState:
        """Return the state before the first batch."""
        return WeightsState(facts.shares)

    def move(self, state: WeightsState, facts: TaskFacts, rewards: Mapping[str, float]) -> WeightsState:
        """Return the state whose weights the next update is taken with.

        Args:
            state: That after the batch before, or of :meth:`first`.
            facts: Of the tasks.
            rewards: Mean reward of each task that the batch just trained on has rollouts of; finite.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method move(self, state, facts, rewards)")

    def multipliers(self, state: WeightsState) -> Mapping[str, float]:  # noqa: ARG002
        """Return the Lagrange multiplier of each task that has one, for the record."""
        return {}

    def begin(self, facts: TaskFacts) -> WeightsState:
        """Return the state before the first batch.

        Raises:
            ValueError: A weight is none.
        """
        return self._checked(self.first(facts), facts)

    def step(self, state: WeightsState, facts: TaskFacts, rewards: Mapping[str, float]) -> WeightsState:
        """Return the state after a batch; rewards that are not finite are left out.

        Raises:
            ValueError: A weight is none, or the memory cannot be saved.
        """
        finite = {task: value for task, value in rewards.items() if math.isfinite(value)}
        return self._checked(self.move(state, facts, finite), facts)

    def _checked(self, state: WeightsState, facts: TaskFacts) -> WeightsState:
        """Return the state as a checkpoint would hold it."""
        label = f"task weights {self.name or type(self).__name__}"
        if not isinstance(state, WeightsState):
            raise ValueError(f"{label}: it must return a WeightsState, got {type(state).__name__}")
        if set(state.weights) != set(facts.shares):
            raise ValueError(
                f"{label}: weights are needed for {', '.join(facts.shares)}, got {', '.join(state.weights)}"
            )
        for task, weight in state.weights.items():
            if not 0 < weight < math.inf:
                raise ValueError(f"{label}: the weight of {task!r} must be finite and above 0, got {weight!r}")
        try:
            return WeightsState.from_json(json.loads(json.dumps(state.to_json())))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{label}: its memory must be made of JSON values: {error}") from None


def smoothed(before: Mapping[str, float], rewards: Mapping[str, float], decay: float) -> dict[str, float]:
    """Return the running means of rewards after a batch: ``decay * before + (1 - decay) * now``, at first ``now``."""
    now = {task: decay * before.get(task, value) + (1 - decay) * value for task, value in rewards.items()}
    return {**before, **now}


class FixedWeights(TaskWeights):
    """Weights stay those of the recipe."""

    name = "fixed"
    moves = False

    def move(self, state: WeightsState, facts: TaskFacts, rewards: Mapping[str, float]) -> WeightsState:  # noqa: ARG002
        """Count the batch and change nothing."""
        return state.after(state.weights)
