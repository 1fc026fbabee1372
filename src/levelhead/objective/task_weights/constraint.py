"""Weights under constraints: no task's mean reward below a bound, by Lagrange multipliers on the objective."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from levelhead.objective.task_weights.base import TaskFacts, TaskWeights, WeightsState, smoothed


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
