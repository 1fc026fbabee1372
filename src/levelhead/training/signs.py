"""Which updates are audited, in which precision, and what is reported of it.

An audit compares the gradient that an update's own path made with the gradients of its terms.  In half precision the
backward passes round, and a small term disappears in what is lost of a large one; and at the first update the policy is
its reference, where a KL has no gradient.  Before an audited update there is therefore a dry run: a few of its short
samples go through the same path in float32, with weights a little way off, and leave no trace.  There every sign can be
told.  The update's own gradient is audited as well, and judged only where a term stands out of its rounding.  Where
float32 is not to be had, the terms that rounding hides are named, and nothing stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from levelhead import metrics as metric
from levelhead.message import Message
from levelhead.objective.aggregation import GradientMerger
from levelhead.objective.audit import Auditor, AuditReport
from levelhead.objective.terms import EXPECTED_SENSES, Term
from levelhead.policy.policy import Policy
from levelhead.policy.rounding import coarsest, exact_policy, full_products, nudged, why_not_exact
from levelhead.recipe.training import Grpo
from levelhead.records import Decision, Event
from levelhead.rollout.draws import derive
from levelhead.training.batch import Sample
from levelhead.training.objective import Objective
from levelhead.training.optim import Updater
from levelhead.training.passes import accumulate, make_merger
from levelhead.training.plan import Plan, all_have
from levelhead.training.ranks import Ranks
from levelhead.training.step_result import Update
from levelhead.training.update_metrics import UpdateMetrics
from levelhead.training.watcher import Watcher

WRONG = "term-sign"
"""Code of the event of a term that enters the update against its sense."""
UNJUDGED = "term-sign-unjudged"
"""Code of the event of terms whose sign rounding hides."""

HIDDEN = Message(
    "the signs of {terms} cannot be judged at this precision: in {kind} rounding makes up {share:.1%} of the gradient, "
    "and a pass in float32 is not to be had ({why})",
    "在此精度下无法判断 {terms} 的符号：{kind} 的舍入误差占梯度的 {share:.1%}，又无法用 float32 计算一遍（{why}）",
)
NO_MEMORY = Message("a pass in float32 does not fit into the device's memory", "设备内存不够用 float32 计算一遍")

EXACT_TOKENS = 2048
"""Tokens of a task in the dry run, at least one sample: float32 is slower than the run's own precision."""
OFF = 0.2
"""Noise on the last weights in the dry run, in their own standard deviations."""


@dataclass(frozen=True, slots=True)
class StepAudit:
    """The audit of an update that is being made.

    Attributes:
        auditor: Is shown the update's own terms.
        exact: Of the dry run in float32; ``None`` where it was not to be had.
        why: Why it was not.
        early: Whether it is one of the first of a run, which report terms that cannot be judged.
    """

    auditor: Auditor
    exact: AuditReport | None
    why: str | None
    early: bool


class UpdateAudits(Watcher):
    """Audits the updates that a recipe asks to audit (``grpo.audit``), by gradients along the weights.

    Args:
        policy: What is trained.
        objective: Builds the terms.
        updater: The optimizer.
        config: The ``grpo`` section.
        merger: The run's own.
        ranks: The processes that share the work.
    """

    def __init__(
        self,
        policy: Policy,
        objective: Objective,
        updater: Updater,
        config: Grpo,
        merger: GradientMerger,
        ranks: Ranks,
    ) -> None:
        self.policy, self.objective, self.updater, self.config = policy, objective, updater, config
        self.merger, self.ranks = merger, ranks
        self._audit: StepAudit | None = None

    def planned(self, update: Update) -> None:
        """Rehearse an update and start its audit, where one is due."""
        audit, done, self._audit = self.config.audit, self.updater.done, None
        due = done < audit.first or (audit.every > 0 and done % audit.every == 0)
        # Where weights are divided, a process that lacks a term takes its passes with weight 0.
        if not due or not (self.ranks.alone or self.policy.sharded or all_have(update.plan, self.ranks)):
            return
        dry_runs = self.ranks.gathered(self._in_float32(update.plan, update.seed))
        why = next((reason for _, reason in dry_runs if reason), None)
        exact = None if why else dry_runs[0][0]
        kind = coarsest(self.policy)
        reduce, total = self.ranks.reduces(self.policy), self.policy.sum_over_ranks
        auditor = Auditor(
            self.policy.parameters, reduce=reduce, total=total, expected_senses=EXPECTED_SENSES, dtype=kind
        )
        self._audit = StepAudit(auditor, exact, why, done < max(audit.first, 1))

    def terms(self, terms: Sequence[Term]) -> None:
        """Show the terms of a micro-batch to the audit."""
        if self._audit is not None:
            self._audit.auditor.add(terms)

    def before(self, update: Update) -> Iterable[Decision]:
        """Judge the update whose gradient is in ``p.grad``; its metrics are added to the update's.

        Signs and coefficients are judged whatever the optimizer; slopes need one whose update follows from gradient and
        moments entry by entry.

        Raises:
            SignError: A term enters it against its sense, and the recipe says to stop there.
        """
        if (audit := self._audit) is None or update.skipped:
            return []
        # AdamW's update follows from gradient and moments entry by entry; Muon's does not.
        by_entry = isinstance(self.updater.optimizer, torch.optim.AdamW)
        report = audit.auditor.finish(self.updater.optimizer, slopes=by_entry)
        if audit.exact is not None:
            report = AuditReport(report.metrics, audit.exact.errors or report.errors)
        if self.config.audit.on_error == "stop":
            report.check()
        update.values |= report.metrics
        events = [Event(update.step, WRONG, "critical", line, "warn") for line in report.errors]
        if audit.why and audit.early and report.unjudged:
            events.append(self._unjudged(update.step, report, audit.why))
        return [Decision("warn", event) for event in events]

    def _in_float32(self, plan: Plan, seed: int) -> tuple[AuditReport | None, str | None]:
        """Make a dry run of an update in float32; the report of its audit, or why there is none."""
        if (why := why_not_exact(self.policy)) is not None:
            return None, why
        try:
            return self._dry_run(plan, derive(seed, "audit")), None
        except torch.OutOfMemoryError:
            return None, NO_MEMORY()
        finally:
            for parameter in self.policy.parameters:
                parameter.grad = None

    def _dry_run(self, plan: Plan, seed: int) -> AuditReport | None:
        """The audit of a few samples by themselves; ``None`` where their passes break."""
        policy = exact_policy(self.policy)
        merger = make_merger(policy, self.config, seed, tuple(self.objective.coefficients.kl))
        merger.aggregator = self.merger.aggregator
        auditor = Auditor(
            policy.parameters, total=policy.sum_over_ranks, expected_senses=EXPECTED_SENSES, dtype=torch.float32
        )
        tokens = min(self.config.tokens_per_microbatch, EXACT_TOKENS)
        objective, metrics = self.objective.with_own_references(), UpdateMetrics()
        with full_products(), nudged(policy, OFF, seed):
            few = objective.plan(_few(plan), temperature=plan.temperature, at_old_policy=True, seed=seed)
            accumulate(policy, objective, few, tokens, merger, metrics, auditor.add)
            metrics.read()
            if metrics.broken:
                return None
            merger.finish()
            return auditor.finish(slopes=False)

    def _unjudged(self, step: int, report: AuditReport, why: str) -> Event:
        kind = str(coarsest(self.policy)).removeprefix("torch.")
        share = report.metrics[metric.AUDIT_UNEXPLAINED]
        message = HIDDEN(terms=", ".join(report.unjudged), kind=kind, share=share, why=why)
        evidence = {name: report.metrics[name] for label in report.unjudged for name in _numbers(label, report)}
        return Event(step, UNJUDGED, "info", message, None, {metric.AUDIT_UNEXPLAINED: share, **evidence})


def _numbers(label: str, report: AuditReport) -> list[str]:
    names = (metric.AUDIT_COEF.of(label), metric.AUDIT_COEF_ERROR.of(label))
    return [name for name in names if name in report.metrics]


def _few(plan: Plan) -> list[Sample]:
    """The shortest samples of each task, those with signal first, up to a bound of tokens."""
    shortest: list[Sample] = []
    for members in plan.samples.values():
        room = EXACT_TOKENS
        for index, sample in enumerate(sorted(members, key=lambda s: (not s.has_signal, len(s.sequence.input_ids)))):
            room -= len(sample.sequence.input_ids)
            if index and room < 0:
                break
            shortest.append(sample)
    return shortest
