"""What the tasks' objectives count for, batch after batch."""

from __future__ import annotations

from collections.abc import Mapping

from levelhead.objective.task_weights import Constraint, FixedWeights, InverseLoss
from oracle.textbook.records import Settings, UnprovedError


class TaskBalance:
    """The weights of the coming update, from the mean rewards of the batches so far.

    Args:
        settings: The recipe.

    Raises:
        UnprovedError: No page describes the rule.
    """

    def __init__(self, settings: Settings) -> None:
        self._rule, self._tasks = settings.grpo.task_weights, settings.tasks
        if not isinstance(self._rule, FixedWeights | InverseLoss | Constraint):
            raise UnprovedError(f"grpo.task_weights.kind: {getattr(self._rule, 'kind', type(self._rule).__name__)}")
        self._mean: dict[str, float] = {}
        self._integral = dict.fromkeys(self._rule.least, self._rule.start) if isinstance(self._rule, Constraint) else {}
        self._multiplier = dict(self._integral)

    @property
    def now(self) -> dict[str, float]:
        """Weight of each task, relative to the others."""
        whole = sum(task.weight for task in self._tasks.values())
        own = {name: task.weight / whole for name, task in self._tasks.items()}
        if isinstance(self._rule, Constraint):
            # The Lagrangian w J + lambda (J - b), divided by 1 + sum of lambda (Stooke et al. 2020, arXiv:2007.03964).
            return {name: weight + self._multiplier.get(name, 0.0) for name, weight in own.items()}
        if isinstance(self._rule, InverseLoss):
            return {name: weight * self._worth(name) for name, weight in own.items()}
        return {name: task.weight for name, task in self._tasks.items()}

    def _worth(self, name: str) -> float:
        assert isinstance(self._rule, InverseLoss)
        most = self._rule.most.get(name, self._tasks[name].most)
        if not self._mean or most is None:
            return 1.0
        loss = max(most - self._mean[name], self._rule.floor) if name in self._mean else 1.0
        return 1.0 / float(loss**self._rule.power)

    def see(self, rewards: Mapping[str, float]) -> None:
        """Take in the mean rewards of a batch."""
        before = dict(self._mean)
        if isinstance(self._rule, FixedWeights):
            return
        assert isinstance(self._rule, InverseLoss | Constraint)
        for name, reward in rewards.items():
            old = before.get(name, reward)
            self._mean[name] = old + (1 - self._rule.smooth) * (reward - old)
        if not isinstance(self._rule, Constraint):
            return
        for name in set(self._rule.least) & set(rewards):
            lack, top = self._rule.least[name] - self._mean[name], self._rule.top
            self._integral[name] = max(0.0, min(top, self._integral[name] + self._rule.eta * lack))
            fallen = max(before.get(name, self._mean[name]) - self._mean[name], 0.0)
            swing = self._rule.kp * lack + self._rule.kd * fallen
            self._multiplier[name] = max(0.0, min(top, self._integral[name] + swing))
