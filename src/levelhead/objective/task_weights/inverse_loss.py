"""Weights by inverse loss: every task's shortfall counts in proportion to what is left of it."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from levelhead.objective.task_weights.base import TaskFacts, TaskWeights, WeightsState, smoothed


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
