"""The forward and backward passes of an update.

Where weights are divided, every pass is a collective: there are as many, in the same order, on every process.  A
process that has fewer micro-batches of a task than another fills up with a sequence of that task whose terms are
multiplied by 0; where its micro-batch lacks a term that another's has (no group of it has a signal), it takes that
term's backward pass with a value of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from levelhead import metrics as metric
from levelhead.message import Message
from levelhead.objective.aggregation import ConflictMonitor, GradientMerger, MergeReport
from levelhead.objective.terms import Term
from levelhead.policy.policy import Policy
from levelhead.recipe.objective import MergeSection
from levelhead.recipe.training import Grpo
from levelhead.records import Event
from levelhead.rollout.draws import derive
from levelhead.training.objective import Objective
from levelhead.training.plan import Plan, own_part
from levelhead.training.ranks import Ranks
from levelhead.training.update_metrics import UpdateMetrics


def accumulate(
    policy: Policy,
    objective: Objective,
    plan: Plan,
    tokens: int,
    merger: GradientMerger,
    metrics: UpdateMetrics,
    watch: Callable[[Sequence[Term]], None] | None = None,
    ranks: Ranks | None = None,
) -> None:
    """Run the forward and backward passes of an update into a merger, task by task and micro-batch by micro-batch.

    Args:
        policy: What is trained.
        objective: Builds the terms.
        plan: Of the update, with the samples of all processes.
        tokens: Of a micro-batch, at most.
        merger: Takes the terms' gradients.
        metrics: Takes the statistics of this process's own sequences.
        watch: Shown the terms of each micro-batch before their backward pass.
        ranks: The processes that share the groups; this one alone unless given.
    """
    merger.start()
    ranks = ranks or Ranks()
    own, collective = own_part(plan, ranks), policy.sharded
    with policy.training():
        for task in plan.samples:  # a task at a time: no backward runs through another's rows
            members = own.samples.get(task)
            micros = policy.pack([s.sequence for s in members], tokens) if members else []
            passes = max(ranks.gathered(len(micros))) if collective else len(micros)
            for index in range(passes):
                if collective:  # a later epoch finds some reference values noted, on one process more than on another
                    objective.references.clear()
                if index < len(micros):
                    terms = objective.terms(policy, micros[index], task, own, metrics)
                else:
                    terms = _filler(policy, objective, task, plan, tokens)
                if collective:
                    terms = _completed(terms, ranks)
                if watch is not None:
                    watch(terms)
                merger.add(terms)


def _filler(policy: Policy, objective: Objective, task: str, plan: Plan, tokens: int) -> list[Term]:
    """Terms of a task's shortest sample, all multiplied by 0, of which nothing is noted."""
    shortest = min(plan.samples[task], key=lambda s: len(s.sequence.input_ids))
    (micro,) = policy.pack([shortest.sequence], tokens)
    alone = replace(plan, samples={task: [shortest]}, generator=torch.Generator().manual_seed(0))
    terms = objective.with_own_references().terms(policy, micro, task, alone)
    return [replace(term, value=term.value * 0.0) for term in terms]


def _completed(terms: Sequence[Term], ranks: Ranks) -> list[Term]:
    """The terms that any process has, in one order; a value of 0 stands for those that are not among one's own."""
    shapes = [(t.name, t.sense, t.weight, t.task) for t in terms]
    everywhere = dict.fromkeys(shape for part in ranks.gathered(shapes) for shape in part)
    own = dict(zip(shapes, terms, strict=True))
    zero = torch.stack([term.value for term in terms]).sum() * 0.0
    return [own.get((n, s, w, task)) or Term(n, zero, s, w, task) for n, s, w, task in everywhere]


SWITCHED = "merge-switched"
"""Code of the event that merging was switched on."""
PULL_APART = Message(
    "the gradients of {pair} pull apart (cosine {cosine:.2f}, below {below:g}, for {looks} looks in a row): {kind} "
    "takes over from the sum. grpo.merge.kind: {kind} does so from the start, grpo.merge.switch_after: 0 never",
    "{pair} 的梯度方向相背（余弦 {cosine:.2f}，低于 {below:g}，连续 {looks} 次检查）：{kind} 取代简单相加。"
    "设 grpo.merge.kind: {kind} 可从一开始就这样做，设 grpo.merge.switch_after: 0 则永不切换",
)
PAIR = Message("{one} and {other}", "{one} 与 {other}")


def make_merger(
    policy: Policy, config: Grpo, seed: int, tasks: Sequence[str] = (), ranks: Ranks | None = None
) -> GradientMerger:
    """Return the gradient merger that a recipe asks for, with its conflict monitor."""
    merge = config.merge
    return GradientMerger(
        policy.parameters,
        merge.make(),
        memory=merge.memory,
        scale=merge.scale,
        monitor=ConflictMonitor(merge.monitor_every, merge.switch_after, merge.conflict_below),
        switch_to=merge.make_switch(),
        seed=derive(seed, "merge"),
        tasks=tasks,
        reduce=ranks.reduces(policy) if ranks else None,
        total=policy.sum_over_ranks,
    )


def switch_events(step: int, report: MergeReport, merge: MergeSection) -> list[Event]:
    """Return the event that tells of a switch, where the monitor has just switched merging on; else nothing.

    Args:
        step: Step of the run.
        report: Of the update's merge.
        merge: The ``grpo.merge`` section.
    """
    if not report.switched:
        return []
    prefix = metric.MERGE_COSINE.prefix
    cosines = {name.removeprefix(prefix): value for name, value in report.metrics.items() if name.startswith(prefix)}
    pair, cosine = min(cosines.items(), key=lambda item: item[1])
    one, _, other = pair.partition("/")
    message = PULL_APART(
        pair=PAIR(one=one, other=other),
        cosine=cosine,
        below=merge.conflict_below,
        looks=merge.switch_after,
        kind=merge.switch_to,
    )
    evidence = {
        **{f"{prefix}{name}": value for name, value in cosines.items()},
        "conflict_below": merge.conflict_below,
        "looks": merge.switch_after,
        "from": report.kind,
        "to": merge.switch_to,
    }
    return [Event(step, SWITCHED, "warning", message, "adapt", evidence)]
