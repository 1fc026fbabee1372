"""Checks the identities of a stage while it goes on, and tells of each that breaks once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from levelhead import metrics as metric
from levelhead.objective.aggregation import MergeReport
from levelhead.policy.policy import Policy
from levelhead.policy.rounding import tolerance
from levelhead.recipe import Recipe
from levelhead.recipe.curriculum import ByWeight
from levelhead.recipe.training import Grpo, Sft
from levelhead.records import CoefficientOverrides, Event, Group, Prompt
from levelhead.tasks.base import Task
from levelhead.training.advantages import GroupAdvantages
from levelhead.training.batch import Batch, Sample
from levelhead.training.coefficients import Coefficients
from levelhead.training.collect import Collected
from levelhead.training.identities.advantages import BATCH, BatchAdvantages
from levelhead.training.identities.base import Violation, content
from levelhead.training.identities.draws import accounted, same_weights
from levelhead.training.identities.items import Epochs, HeldOut, tells_apart
from levelhead.training.identities.merge import MergeWitness
from levelhead.training.identities.numbers import UPDATE, Numbers
from levelhead.training.identities.stepping import Stepping
from levelhead.training.optim import Updater
from levelhead.training.plan import Plan
from levelhead.training.prepare import name_of
from levelhead.training.update_metrics import REFERENCE_GAP

UNCHECKED = "identity-unchecked"
"""Code of the event that a check itself broke; the run goes on."""


class NoIdentities:
    """Looks on at a stage and checks nothing."""

    witness: MergeWitness | None = None

    def begin(self, overrides: CoefficientOverrides) -> None:
        """Begin a step, with the overrides where the guard has put them."""

    def drawn(self, prompts: Sequence[Prompt]) -> None:
        """Look at the prompts of a step, in the order in which they were sampled."""

    def collected(self, rollouts: Collected) -> None:
        """Look at the rollouts of a step, and what became of those that are not among them."""

    def synced(self, copy: Policy, policy: Policy) -> None:
        """Look at a copy of the policy that has just taken over its weights."""

    def group_advantages(
        self,
        groups: Sequence[Group],
        assigned: Sequence[GroupAdvantages],
        batch: Batch,
        minibatches: Sequence[Sequence[Sample]],
        measured: Mapping[str, float],
    ) -> None:
        """Look at a batch with its advantages."""

    def gradient(self, merged: MergeReport | None = None) -> None:
        """Look at the gradient of an update, before it is clipped."""

    def clipped(self, norm: float) -> None:
        """Look at it after, given the norm that is logged."""

    def numbers(
        self,
        values: Mapping[str, float],
        coefficients: Coefficients,
        sums: Mapping[str, float],
        plan: Plan,
        strengths: Mapping[str, float],
    ) -> None:
        """Look at the metrics of an update that is about to be made."""

    def updated(self, values: Mapping[str, float], *, skipped: bool) -> None:
        """Look at an update that has been made, or skipped."""

    def passed(self, updates: int = 1) -> None:
        """Count updates that are not made."""

    def restarted(self) -> None:
        """Take note that the optimizer has been emptied by intention."""

    def evaluated(self, groups: Iterable[Group]) -> None:
        """Look at the items of an evaluation."""

    def resumed(self, violations: Iterable[Violation]) -> None:
        """Take in what the comparison with the run that was left has shown."""

    def events(self, step: int) -> list[Event]:  # noqa: ARG002
        """Return, once each, the events of identities that were broken since the last call."""
        return []

    def state(self) -> dict[str, Any]:
        """What a resumed run needs, as JSON."""
        return {}

    def load_state(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor] | None, update: int) -> None:
        """Restore :meth:`state` and :meth:`tensors`.

        Args:
            state: Empty in a checkpoint of before there was any.
            tensors: ``None`` where the data are others now, so that no item is known from before.
            update: Updates that the trainer counts.
        """

    def tensors(self) -> dict[str, Tensor]:
        """What was sampled of each task, for a checkpoint."""
        return {}


class Identities(NoIdentities):
    """Watches a stage of a run.

    It is not :class:`~levelhead.training.stateful.Stateful`: its state lies in two files, because a checkpoint reads
    and clears the scores in ``state.json`` before any tensor is loaded, and items are left out where data have changed.

    Args:
        recipe: The whole recipe.
        section: The stage's own.
        policy: What is trained.
        updater: Its optimizer.
        tasks: By name.
    """

    def __init__(
        self,
        recipe: Recipe,
        section: Sft | Grpo,
        policy: Policy,
        updater: Updater,
        tasks: Mapping[str, Task],
    ) -> None:
        self._recipe, self._section, self._policy, self._tasks = recipe, section, policy, tasks
        self._grpo = section if isinstance(section, Grpo) else None
        per_step = self._grpo.updates_per_batch * self._grpo.epochs if self._grpo else 1
        self._stepping = Stepping(policy, updater, section.steps * per_step)
        self._epochs = Epochs(tasks) if self._by_turns() else None
        self._held, self._holds = HeldOut(), False
        self._knobs = CoefficientOverrides()
        self._measured: Mapping[str, float] = {}
        self._merged = MergeReport("sum")
        self._told: list[str] = []
        self._broken: list[Violation] = []
        self._sees = True
        self.witness = MergeWitness(policy.total)

    def _by_turns(self) -> bool:
        """Whether items are sampled epoch after epoch, and by no curriculum."""
        return self._grpo is None or isinstance(self._grpo.curriculum, ByWeight)

    def begin(self, overrides: CoefficientOverrides) -> None:
        """See :class:`NoIdentities`, here and below."""
        self._knobs = overrides

    def drawn(self, prompts: Sequence[Prompt]) -> None:  # noqa: D102
        if not self._holds:
            self._holds = True
            self._take(self._hold())
        if self._epochs is not None:
            self._take(self._epochs.drawn(prompts))
        self._take(self._held.drawn(prompts))

    def collected(self, rollouts: Collected) -> None:  # noqa: D102
        self._take(accounted(rollouts))

    def synced(self, copy: Policy, policy: Policy) -> None:  # noqa: D102
        self._take(same_weights(copy, policy))

    def _hold(self) -> Iterator[Violation]:
        for task in self._tasks.values():
            self._held.hold(content(prompt) for prompt in task.prompts("eval", 0) if tells_apart(task, prompt))
        yield from ()

    def group_advantages(  # noqa: D102
        self,
        groups: Sequence[Group],
        assigned: Sequence[GroupAdvantages],
        batch: Batch,
        minibatches: Sequence[Sequence[Sample]],
        measured: Mapping[str, float],
    ) -> None:
        assert self._grpo is not None  # noqa: S101 - only that stage has assigned
        self._measured = measured
        shaping = {name_of(section): section.shaping for section in self._recipe.tasks}
        made = BatchAdvantages(self._grpo, shaping, groups, assigned, batch, minibatches)
        for identity in BATCH:
            self._take(identity(made))

    def gradient(self, merged: MergeReport | None = None) -> None:  # noqa: D102
        self._step_by(self._noted())
        if merged is not None and self._grpo is not None and self.witness is not None:
            self._merged = merged
            self._take(self.witness.judge(merged, self._grpo.merge))

    def _noted(self) -> Iterator[Violation]:
        self._stepping.gradient()
        yield from ()

    def clipped(self, norm: float) -> None:  # noqa: D102
        self._step_by(self._stepping.clipped(norm, self._section.optimizer.max_grad_norm))

    def numbers(  # noqa: D102
        self,
        values: Mapping[str, float],
        coefficients: Coefficients,
        sums: Mapping[str, float],
        plan: Plan,
        strengths: Mapping[str, float],
    ) -> None:
        assert self._grpo is not None  # noqa: S101 - only that stage has an objective
        norm, bound = values.get(metric.GRAD_NORM, 0.0), self._section.optimizer.max_grad_norm
        gaps = {task: sums[key] for task in plan.shares if (key := REFERENCE_GAP.format(task=task)) in sums}
        numbers = Numbers(
            recipe=self._recipe,
            grpo=self._grpo,
            values={**self._measured, **values, metric.ENTROPY_COEF: coefficients.entropy},
            overrides=self._knobs,
            first=self._stepping.update == 0,
            on_policy=plan.on_policy,
            present=tuple(plan.shares),
            tolerance=tolerance(self._policy),
            gaps=gaps,
            kl_coefs=coefficients.kl,
            weights=coefficients.task_weights.weights if coefficients.task_weights.moves else {},
            merged=self._merged.weights,
            strengths=strengths,
            clip_factor=min(1.0, bound / (norm + 1e-6)),
        )
        for identity in UPDATE:
            self._take(identity(numbers))

    def updated(self, values: Mapping[str, float], *, skipped: bool) -> None:  # noqa: D102
        if not self._sees:
            self._stepping.passed()
            return
        self._step_by(self._stepping.finish(values[metric.LEARNING_RATE], self._knobs.learning_rate, skipped=skipped))
        self._step_by(self._stepping.frozen())

    def passed(self, updates: int = 1) -> None:  # noqa: D102
        self._stepping.passed(updates)

    def restarted(self) -> None:  # noqa: D102
        self._stepping.restarted()

    def evaluated(self, groups: Iterable[Group]) -> None:  # noqa: D102
        prompts = [group.prompt for group in groups]
        self._held.hold(content(prompt) for prompt in prompts if tells_apart(self._tasks[prompt.task], prompt))

    def resumed(self, violations: Iterable[Violation]) -> None:  # noqa: D102
        self._take(violations)

    def events(self, step: int) -> list[Event]:  # noqa: D102
        fresh: dict[str, Violation] = {}
        for violation in self._broken:
            if violation.code not in self._told:
                fresh.setdefault(violation.code, violation)
        self._broken.clear()
        self._told += fresh
        return [violation.event(step) for violation in fresh.values()]

    def state(self) -> dict[str, Any]:  # noqa: D102
        return {"updates": self._stepping.update, "told": self._told}

    def load_state(  # noqa: D102
        self, state: Mapping[str, Any], tensors: Mapping[str, Tensor] | None, update: int
    ) -> None:
        self._stepping.update = int(state.get("updates", update))
        self._told = [code for code in state.get("told", ()) if code != "resume-differs"]
        if self._epochs is not None:
            if tensors is None or not (tensors or state):
                self._epochs = None  # nor are items
            else:
                self._epochs.load(tensors)

    def tensors(self) -> dict[str, Tensor]:  # noqa: D102
        return self._epochs.tensors() if self._epochs is not None else {}

    def _step_by(self, violations: Iterable[Violation]) -> None:
        """Look at an update, unless a look at an earlier one broke: what was not seen of it would be missing now."""
        self._sees = self._sees and self._take(violations)

    def _take(self, violations: Iterable[Violation]) -> bool:
        """Gather what is broken; a check that itself breaks is no reason to end a run.  Returns whether it did not."""
        try:
            self._broken += violations
            return True
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            text = f"an identity could not be checked: {type(error).__name__}: {error}"
            self._broken.append(Violation(UNCHECKED, text, severity="info"))
            return False
