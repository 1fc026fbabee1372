"""The coefficients of the KL penalties and of the entropy bonus, the weights over tasks, and what moves them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from levelhead import metrics as metric
from levelhead.errors import InputError
from levelhead.objective.controllers import Controller, ControllerState
from levelhead.objective.task_weights import FixedWeights, TaskFacts, TaskWeights, WeightsState
from levelhead.recipe.objective import KlController, make_controller
from levelhead.recipe.training import Grpo
from levelhead.records import CoefficientOverrides
from levelhead.tasks.base import Task


class Coefficients:
    """What each term of the objective is multiplied by at this step.

    Args:
        config: The ``grpo`` section.
        kl: KL coefficient of each task, ``None`` for the section's; in the recipe's order.
        controllers: What moves the KL coefficient of each task; the section's where none is given.
        task_weights: What each task's objective counts for; all alike unless given.

    Raises:
        ValueError: Settings of a controller do not fit each other.
        InputError: A controller of the user's own is missing, or does not fit.
    """

    def __init__(
        self,
        config: Grpo,
        kl: Mapping[str, float | None],
        controllers: Mapping[str, KlController | None] | None = None,
        task_weights: WeightsInForce | None = None,
    ) -> None:
        own = controllers or {}
        self.overrides = CoefficientOverrides()
        """What a guard multiplies the coefficients, the clip range and the temperature by."""
        self.task_weights = task_weights or WeightsInForce(FixedWeights(), facts_of(dict.fromkeys(kl, 1.0)))
        self._kl: dict[str, Controller] = {}
        self._kl_states: dict[str, ControllerState] = {}
        for index, (task, coef) in enumerate(kl.items()):
            key = f"tasks.{index}.kl_controller" if own.get(task) else "grpo.kl.controller"
            start, section = config.kl.of_task(coef, own.get(task))
            self._kl[task] = make_controller(section, "kl", key)
            self._kl_states[task] = _begin(self._kl[task], start, f"the KL controller of task {task!r}")
        self._entropy = make_controller(config.entropy.controller, "entropy", "grpo.entropy.controller")
        self._entropy_state = _begin(self._entropy, config.entropy.coef, "the entropy controller")

    @property
    def needs_reference(self) -> bool:
        """Whether any task has a KL penalty, or can come to have one."""
        return any(self.measures_kl(task) for task in self._kl)

    def measures_kl(self, task: str) -> bool:
        """Whether a task's KL must be computed: it costs something, or a controller follows it."""
        return self._kl_states[task].coef > 0 or self._kl[task].moves

    @property
    def kl(self) -> dict[str, float]:
        """KL coefficient of each task in force."""
        return {task: state.coef * self.overrides.kl for task, state in self._kl_states.items()}

    @property
    def entropy(self) -> float:
        """Entropy coefficient that is in force."""
        return self._entropy_state.coef * self.overrides.entropy + self.overrides.entropy_bonus

    def metrics(self) -> dict[str, float]:
        """The coefficients in force, as metrics."""
        values = {metric.KL_COEF.of(task): coef for task, coef in self.kl.items() if self.needs_reference}
        return values | {metric.ENTROPY_COEF: self.entropy} | self.task_weights.metrics()

    def update(self, values: Mapping[str, float]) -> None:
        """Let the controllers follow a step's metrics; a value that is not finite moves nothing."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        for task, controller in self._kl.items():
            if (name := metric.KL_BY_TASK.of(task)) in finite:
                self._kl_states[task] = controller.step(self._kl_states[task], finite[name])
        if metric.ENTROPY in finite:
            self._entropy_state = self._entropy.step(self._entropy_state, finite[metric.ENTROPY])
        self.task_weights.update(finite)

    def state_dict(self) -> dict[str, Any]:
        """State of the controllers: ``kl/<task>``, ``entropy``, and ``task_weights`` where these move."""
        states = {f"kl/{task}": state.to_json() for task, state in self._kl_states.items()}
        return states | {"entropy": self._entropy_state.to_json()} | self.task_weights.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._kl_states = {task: ControllerState.from_json(state[f"kl/{task}"]) for task in self._kl_states}
        self._entropy_state = ControllerState.from_json(state["entropy"])
        self.task_weights.load_state_dict(state)


def _begin(controller: Controller, coef: float, label: str) -> ControllerState:
    try:
        return controller.begin(coef)
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None


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
