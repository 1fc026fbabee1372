"""A whole run under the oracle: every update, batch and merge is worked out once more while it goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from levelhead import metrics as metric
from levelhead.objective.aggregation import GradientMerger, MergeReport
from levelhead.objective.audit import Auditor
from levelhead.policy.rounding import tolerance
from levelhead.recipe import Recipe, validate
from levelhead.training import grpo as module
from levelhead.training.advantages import AdvantageEstimator
from levelhead.training.grpo import GrpoTrainer
from levelhead.training.optim import Updater
from levelhead.training.run import Run
from levelhead.training.signs import UpdateAudits
from levelhead.training.step_result import Update
from levelhead.training.update_metrics import REFERENCE_GAP
from oracle.batch_advantages import BATCH, BatchAdvantages
from oracle.stepping import Stepping
from oracle.update_numbers import UPDATE, Numbers
from oracle.violation import Violation


class Watched:
    """Gathers what breaks; of the optimizer, of batches and their advantages, and of the numbers of updates."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.violations: list[Violation] = []
        self.updates = 0
        self.looks: Counter[str] = Counter()
        """How often each kind of look had something to look at."""
        self._stepping: dict[int, Stepping] = {}
        self._bounds: dict[int, float] = {}
        self._assigned: Any = None
        self._measured: dict[str, float] = {}
        self._batch: Any = None
        self._strengths: dict[str, float] = {}
        self._merged = MergeReport("sum")
        self._totals: dict[str, float] = {}
        self._trainer: Any = None

    @property
    def codes(self) -> set[str]:
        """Codes of what was broken."""
        return {violation.code for violation in self.violations}

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Look on at the runs inside."""
        with (
            patch.object(Run, "_begin", self._around(Run._begin, self._begun)),
            patch.object(Updater, "prepare", self._prepare(Updater.prepare)),
            patch.object(Updater, "step", self._step(Updater.step)),
            patch.object(AdvantageEstimator, "assign", self._around(AdvantageEstimator.assign, self._assign)),
            patch.object(module, "make_batch", self._around(module.make_batch, self._make)),
            patch.object(module, "deal_minibatches", self._around(module.deal_minibatches, self._deal)),
            patch.object(GrpoTrainer, "_gradient", self._around(GrpoTrainer._gradient, self._made)),
            # Numbers are complete once the update has been audited; the guard, which comes after, may change them.
            patch.object(UpdateAudits, "before", self._around(UpdateAudits.before, self._numbers)),
            patch.object(module, "summarise", self._around(module.summarise, self._sums)),
            patch.object(Auditor, "finish", self._finish(Auditor.finish)),
            patch.object(GradientMerger, "finish", self._around(GradientMerger.finish, self._merge)),
        ):
            yield

    def _around(self, real: Any, look: Any) -> Any:
        def function(*args: Any, **options: Any) -> Any:
            result = real(*args, **options)
            look(result, *args)
            return result

        return function

    def _begun(self, result: Any, run: Run, stage: str, config: Any) -> None:
        updater = result[1]
        updates = config.steps * (config.updates_per_batch * config.epochs if stage == "grpo" else 1)
        self._bounds[id(updater)] = config.optimizer.max_grad_norm
        self._stepping[id(updater)] = Stepping(run.policy, updater, updates)
        self._stepping[id(updater)].update = updater.done

    def _prepare(self, real: Any) -> Any:
        def clip(updater: Updater) -> float:
            stepping = self._stepping[id(updater)]
            stepping.gradient()
            norm: float = real(updater)
            self.violations += stepping.clipped(norm, self._bounds[id(updater)])
            return norm

        return clip

    def _step(self, real: Any) -> Any:
        def step(updater: Updater) -> None:
            stepping, rate = self._stepping[id(updater)], updater.learning_rate
            stepping.update = updater.done
            real(updater)
            self.updates += 1
            self.violations += stepping.finish(rate, updater.factor, skipped=False)
            self.violations += stepping.frozen()

        return step

    def _assign(self, result: Any, *_: Any) -> None:
        self._assigned, self._measured = result

    def _make(self, batch: Any, groups: Any, *_: Any) -> None:
        self._batch = groups, batch

    def _deal(self, minibatches: Any, *_: Any) -> None:
        assert self.recipe.grpo is not None
        shaping = {section.title: section.shaping for section in self.recipe.tasks}
        groups, batch = self._batch
        made = BatchAdvantages(self.recipe.grpo, shaping, groups, self._assigned, batch, minibatches)
        self.looks["batch"] += 1
        for identity in BATCH:
            self.violations += identity(made)

    def _merge(self, merged: MergeReport, *_: Any) -> None:
        self._merged = merged

    def _sums(self, _: Any, sums: dict[str, float], shares: Any) -> None:
        self._totals = sums

    def _finish(self, real: Any) -> Any:
        def finish(auditor: Auditor, *args: Any, slopes: bool = True) -> Any:
            report = real(auditor, *args, slopes=slopes)
            if slopes:  # of the update itself, and not of its rehearsal
                self._strengths = report.strengths
            return report

        return finish

    def _made(self, _: Any, trainer: GrpoTrainer, *__: Any) -> None:
        self._trainer = trainer

    def _numbers(self, _: Any, __: UpdateAudits, update: Update) -> None:
        assert self.recipe.grpo is not None
        trainer, plan = self._trainer, update.plan
        coefficients, grpo = trainer.objective.coefficients, self.recipe.grpo
        norm = update.values[metric.GRAD_NORM]
        sums, strengths = self._totals, self._strengths
        self.looks["update"] += 1
        self.looks["audit"] += bool(strengths) and any(name.startswith("audit/") for name in update.values)
        self._strengths = {}
        gaps = {task: sums[key] for task in plan.shares if (key := REFERENCE_GAP.format(task=task)) in sums}
        numbers = Numbers(
            recipe=self.recipe,
            grpo=grpo,
            values={**self._measured, **update.values, metric.ENTROPY_COEF: coefficients.entropy},
            overrides=coefficients.overrides,
            first=trainer.updater.done == 0,
            at_old_policy=plan.at_old_policy,
            present=tuple(plan.shares),
            tolerance=tolerance(trainer.policy),
            gaps=gaps,
            kl_coefs=coefficients.kl,
            weights=coefficients.task_weights.weights if coefficients.task_weights.moves else {},
            merged=self._merged.weights,
            strengths=strengths,
            clip_factor=min(1.0, grpo.optimizer.max_grad_norm / (norm + 1e-6)),
        )
        for identity in UPDATE:
            self.violations += identity(numbers)


@contextmanager
def watching(document: dict[str, Any]) -> Iterator[Watched]:
    """Look on at the runs of a recipe inside."""
    watched = Watched(validate(document))
    with watched.attached():
        yield watched
