"""The passes of an update where every pass is a collective: the same number, in the same order, on every process.

Where a process has fewer micro-batches of a task than another, it fills up with a sequence of that task whose terms
are multiplied by 0; where its micro-batch lacks a term that another's has (no group of it has a signal), it takes that
term's backward pass with a value of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from levelhead.objective.aggregation import GradientMerger
from levelhead.objective.audit import Auditor
from levelhead.objective.terms import Sense, Term
from levelhead.policy.policy import Policy
from levelhead.training.objective import NonFiniteError, Objective, Plan
from levelhead.training.ranks import Ranks


def accumulate_in_step(
    policy: Policy,
    objective: Objective,
    plan: Plan,
    tokens: int,
    merger: GradientMerger,
    auditor: Auditor | None,
    ranks: Ranks,
) -> bool:
    """Run the forward and backward passes of an update into a merger; returns whether one broke, on any process.

    Args:
        policy: What is trained; its :meth:`score` is a collective.
        objective: Builds the terms.
        plan: Of the update, with the samples of all processes.
        tokens: Of a micro-batch, at most.
        merger: Takes the terms' gradients.
        auditor: Shown the terms before.
        ranks: The processes.
    """
    merger.start()
    own = ranks.own(plan)
    micros = {task: policy.pack([s.sequence for s in members], tokens) for task, members in own.samples.items()}
    counts = ranks.gathered({task: len(found) for task, found in micros.items()})
    with policy.training():
        for task in plan.samples:
            mine = micros.get(task, [])
            for index in range(max(count.get(task, 0) for count in counts)):
                # A later epoch finds some reference values noted, on one process more than on another.
                objective.begin()
                try:
                    if index < len(mine):
                        terms = objective.terms(policy, mine[index], task, own)
                    else:
                        terms = _filler(policy, objective, task, plan, tokens)
                except NonFiniteError:  # the policy says so on every process, or on none
                    return True
                terms = _completed(terms, ranks)
                if auditor is not None:
                    auditor.add(terms)
                merger.add(terms)
    return False


def _filler(policy: Policy, objective: Objective, task: str, plan: Plan, tokens: int) -> list[Term]:
    """Terms of a task's shortest sample, all multiplied by 0, of which nothing is noted."""
    shortest = min(plan.samples[task], key=lambda s: len(s.sequence.input_ids))
    (micro,) = policy.pack([shortest.sequence], tokens)
    alone = replace(plan, samples={task: [shortest]}, generator=torch.Generator().manual_seed(0))
    with objective.aside():
        objective.sums = {}
        terms = objective.terms(policy, micro, task, alone)
    return [replace(term, value=term.value * 0.0) for term in terms]


@dataclass(frozen=True, slots=True)
class _Shape:
    """A term without its value."""

    name: str
    sense: Sense
    weight: float
    task: str | None


def _completed(terms: Sequence[Term], ranks: Ranks) -> list[Term]:
    """The terms that any process has, in one order; a value of 0 stands for those that are not among one's own."""
    shapes = [_Shape(t.name, t.sense, t.weight, t.task) for t in terms]
    everywhere = dict.fromkeys(shape for found in ranks.gathered(shapes) for shape in found)
    own = dict(zip(shapes, terms, strict=True))
    zero = torch.stack([term.value for term in terms]).sum() * 0.0
    return [own.get(s) or Term(s.name, zero, s.sense, s.weight, s.task) for s in everywhere]
