"""Weights over tasks: what each task's objective counts for in the sum, fixed or following what is measured.

A rule is a class with its settings; its state is a small record, made to be saved with a checkpoint.
``step(state, facts, rewards)`` takes the mean reward of each task of the batch just trained on, and returns the state
whose ``weights`` the next update is taken with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from pydantic import Field

from levelhead.objective.registry import registry
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
    """State of a rule of task weights between two batches.

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


class InverseLoss(TaskWeights):
    """A task weighs the inverse of its loss, which is what its mean reward lacks of the most there is.

    With ``w_i`` the recipe's weight and ``L_i = most_i - reward_i`` the loss, the weight is in proportion to ``w_i /
    max(L_i, floor) ** power``.  With power 1 that is the gradient of ``sum_i w_i log L_i``, the geometric mean of the
    losses (Chennupati et al. 2019, MultiNet++, arXiv:1904.08492): a loss of 0.2 that falls by a tenth counts as much
    as one of 2 that does.  A negative power weighs what lacks most.
    """

    name = "inverse_loss"

    most: dict[str, float] = Field(default_factory=dict)
    """The most reward of tasks by name; that which a task declares unless given."""
    floor: float = Field(0.05, gt=0)
    """Least loss that counts, so that a task that is all but solved does not take all."""
    power: float = Field(1.0, ge=-2, le=2)
    """1 is the inverse loss, 0 the recipe's weights, -1 the loss itself."""
    smooth: float = Field(0.8, ge=0, lt=1)
    """Decay of the running mean of rewards; 0 takes a batch's own."""

    @property
    def tasks(self) -> Mapping[str, str]:
        """Those whose most reward is given."""
        return dict.fromkeys(self.most, "most")

    def check(self, facts: TaskFacts) -> None:
        """Refuse a task whose most reward nobody says."""
        super().check(facts)
        for task in facts.shares:
            if task not in self.most and task not in facts.most:
                raise ValueError(f"most: task {task!r} declares no most reward to measure its loss from; give it here")

    def first(self, facts: TaskFacts) -> WeightsState:
        """Begin with the recipe's weights."""
        return WeightsState(facts.shares, {"rewards": {}})

    def move(self, state: WeightsState, facts: TaskFacts, rewards: Mapping[str, float]) -> WeightsState:
        """Weigh tasks by their losses so far; one that has not been seen counts as if it lacked 1."""
        means = smoothed(state.memory["rewards"], rewards, self.smooth)
        most = {**facts.most, **self.most}
        losses = {task: max(most[task] - mean, self.floor) for task, mean in means.items() if task in most}
        weights = {task: share * losses.get(task, 1.0) ** -self.power for task, share in facts.shares.items()}
        total = sum(weights.values())
        return state.after({task: weight / total for task, weight in weights.items()}, {"rewards": means})


class Constraint(TaskWeights):
    """Maximise the recipe's weighted sum of objectives while some tasks' rewards stay above bounds.

    The Lagrangian of ``max sum_i w_i J_i`` under ``J_c >= b_c`` is ``sum_i w_i J_i + sum_c lambda_c (J_c - b_c)``: task
    c weighs ``w_c + lambda_c``, and all are divided by ``1 + sum_c lambda_c``, so that the step stays as long (Stooke
    et al. 2020, arXiv:2007.03964).  After every batch, with ``e = b_c - reward_c`` what its mean reward lacks and
    ``fall`` what it has lost since the batch before, ``I <- clip(I + eta e, 0, top)`` and then ``lambda_c <- clip(I +
    kp e + kd max(fall, 0), 0, top)``.

    That is dual ascent with ``kp = kd = 0`` (Ray et al. 2019, "Benchmarking safe exploration in deep reinforcement
    learning"; Dai et al. 2023, Safe RLHF, arXiv:2310.12773, ascend on the logarithm), and Stooke et al.'s PID
    controller, whose proportional and derivative parts damp its swings, otherwise.
    """

    name = "constraint"

    least: dict[str, float] = Field(min_length=1)
    """The bound of each constrained task by name: its mean reward in training is to be no lower."""
    eta: float = Field(0.1, gt=0)
    """Change of the multiplier in a batch whose mean reward lacks 1."""
    kp: float = Field(0.0, ge=0)
    """What is added to the multiplier for each 1 that the reward lacks now."""
    kd: float = Field(0.0, ge=0)
    """What is added for each 1 that the reward has lost since the batch before."""
    smooth: float = Field(0.0, ge=0, lt=1)
    """Decay of the running mean that stands in for a batch's mean reward; 0 takes the batch's own."""
    start: float = Field(0.0, ge=0)
    """Multiplier of the first batch."""
    top: float = Field(10.0, gt=0)
    """Largest multiplier: under a bound out of reach, the other tasks keep ``1 / (1 + top)`` of their weight."""

    @property
    def tasks(self) -> Mapping[str, str]:
        """The tasks under a bound, and the key that gives each its bound."""
        return dict.fromkeys(self.least, "least")

    def check(self, facts: TaskFacts) -> None:
        """Refuse bounds that no policy can keep, and a constraint that can change nothing."""
        super().check(facts)
        if len(facts.shares) < 2:
            raise ValueError("least: a constraint weighs one task against others, and the recipe has a single task")
        for task, bound in self.least.items():
            if task in facts.most and bound > facts.most[task]:
                raise ValueError(f"least: {task!r} gives no more than {facts.most[task]:g}, which is below {bound:g}")

    def first(self, facts: TaskFacts) -> WeightsState:
        """Begin with the multipliers of the recipe."""
        begin = {task: min(self.start, self.top) for task in self.least}
        memory = {"integral": begin, "multiplier": begin, "rewards": {}}
        return WeightsState(self._weights(facts, begin), memory)

    def move(self, state: WeightsState, facts: TaskFacts, rewards: Mapping[str, float]) -> WeightsState:
        """Move the multiplier of every constrained task that the batch has rollouts of."""
        before = state.memory["rewards"]
        means = smoothed(before, {task: rewards[task] for task in self.least if task in rewards}, self.smooth)
        integral, multiplier = dict(state.memory["integral"]), dict(state.memory["multiplier"])
        for task in self.least:
            if task not in rewards:
                continue
            lack, fall = self.least[task] - means[task], before.get(task, means[task]) - means[task]
            integral[task] = self._clipped(integral[task] + self.eta * lack)
            multiplier[task] = self._clipped(integral[task] + self.kp * lack + self.kd * max(fall, 0.0))
        memory = {"integral": integral, "multiplier": multiplier, "rewards": means}
        return state.after(self._weights(facts, multiplier), memory)

    def multipliers(self, state: WeightsState) -> Mapping[str, float]:
        """Return the multiplier of each constrained task."""
        multiplier: Mapping[str, float] = state.memory["multiplier"]
        return multiplier

    def _clipped(self, multiplier: float) -> float:
        return min(max(multiplier, 0.0), self.top)

    @staticmethod
    def _weights(facts: TaskFacts, multiplier: Mapping[str, float]) -> dict[str, float]:
        total = 1 + sum(multiplier.values())
        return {task: (share + multiplier.get(task, 0.0)) / total for task, share in facts.shares.items()}


TASK_WEIGHTS = registry(__name__, TaskWeights, [FixedWeights, InverseLoss, Constraint])
"""Every rule by the name that it has in a recipe."""
