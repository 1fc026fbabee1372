"""The arithmetic of the objective, held against the textbook: on policy, off policy, and on its way to the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from levelhead.policy.rounding import tolerance
from oracle.attribution import dealt, explain
from oracle.context import PreflightContext
from oracle.differential import EXACT, Comparison, compare
from oracle.rehearsal import Rehearsal, rehearse
from oracle.result import Check, judged
from oracle.textbook import Book, UnprovedError
from oracle.weights import PlainPass, compare_weights

_FIX = "compare levelhead.objective and levelhead.training with the formula that the message names"


def check_objective(context: PreflightContext) -> Iterator[Check]:
    """Hold the slope of the loss along every token's log-probability against the textbook's."""
    grpo = context.grpo
    if grpo is None:
        return
    with context.exact():
        passes = PlainPass()
        rehearsal = rehearse(context, grpo, passes.before)
        try:
            compared = compare(rehearsal)
        except UnprovedError as error:
            yield _unproved("objective/gradient", error)
            return
        wrong = [c for c in compared if not (c.error <= EXACT and c.doubt <= EXACT)]
        cause = rehearsal.strays[0] if rehearsal.strays else dealt(rehearsal, compared)
        if wrong and not cause:
            cause = _scored_otherwise(rehearsal, passes) or explain(rehearsal, compared, wrong)
        yield _slopes("objective/gradient", rehearsal, compared[:1], cause, wrong)
        yield _slopes("objective/off-policy", rehearsal, compared[1:], cause, wrong)
        yield _weights(rehearsal, compared, passes, wrong)


def _slopes(
    name: str, rehearsal: Rehearsal, compared: Sequence[Comparison], cause: str, wrong: Sequence[Comparison]
) -> Check:
    """Whether the slopes of some updates are the textbook's."""
    told = [t for c in compared for t in c.told]
    sides = [int(sum((t.want.side == side).sum() for t in told)) for side in (-1, 1)]
    grpo = rehearsal.settings.grpo
    evidence: dict[str, Any] = {
        "updates": len(compared),
        "tokens": sum(t.answer.length for t in told),
        "micro_batches": len({(id(c), p.micro) for c in compared for ps in c.update.passes.values() for p in ps}),
        "clipped_below": sides[0],
        "clipped_above": sides[1],
        "largest_error": max((c.error for c in compared), default=0.0),
        "largest_error_of_entropy": max((c.doubt for c in compared), default=0.0),
        "estimator": grpo.advantage.kind,
        "loss": grpo.loss.kind,
        "aggregation": grpo.loss.aggregation,
    }
    off = [c for c in compared if c in wrong]
    message = None
    if len(compared) == 0:
        message = cause or "the trainer made no update of two batches with contrast"
    elif off or (cause and not wrong):
        message = f"the gradient is not the textbook's: {cause}"
        evidence["worst"] = _worst(off or compared)
    places = "at the first update" if len(compared) == 1 else f"of {len(compared)} later updates, clipped and not,"
    right = f"the slope of the loss {places} along all {evidence['tokens']} tokens is the textbook's to {EXACT:g}"
    return judged(name, message, right, evidence, _FIX)


def _unproved(name: str, error: UnprovedError) -> Check:
    message = f"{error} has no textbook here: its arithmetic is not proved"
    return Check(name, "warn", message, {}, "hold it against a second implementation of your own")


def _worst(compared: Sequence[Comparison]) -> list[dict[str, Any]]:
    """The tokens with the largest errors, as plain data."""
    rows: list[tuple[float, dict[str, Any]]] = []
    for c in compared:
        for t in c.told:
            i = int(np.argmax(np.abs(t.total - t.actual)))
            place: dict[str, Any] = {"batch": c.update.batch + 1, "update": c.update.index + 1, "task": t.answer.task}
            place |= {"group": t.answer.problem + 1, "rollout": t.answer.attempt + 1, "position": i + 1}
            want, actual = float(t.total[i]), float(t.actual[i])
            rows.append((abs(want - actual), place | {"textbook": want, "trainer": actual}))
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])[:5]]


def _scored_otherwise(rehearsal: Rehearsal, passes: PlainPass) -> str:
    """Whether policy or reference score completions at another temperature than the recipe's; empty where not."""
    book = Book(rehearsal.settings)
    allowed = tolerance(rehearsal.policy).mean
    for number, batch in enumerate(rehearsal.batches):
        right = book.temperature(number + 1)
        sayings = {
            "the policy": rehearsal.real[number],
            "the reference": {row: real for row, (_, real) in batch.told.items()},
        }
        for who, said in sayings.items():
            if not said or _apart(said, batch.before) <= allowed:
                continue
            for other in sorted({1.0, right**2, 1 / right, book.temperature(1), book.temperature(2)} - {right}):
                if _apart(said, passes.before(rehearsal.policy, rehearsal.rows, other)) <= allowed:
                    return f"{who} scores completions at temperature {other:g}, and the recipe samples at {right:g}"
    return ""


def _apart(said: dict[int, Any], before: Sequence[Any]) -> float:
    """Mean distance of log-probabilities, in nats."""
    return float(np.mean(np.abs(np.concatenate([values - before[row] for row, values in said.items()]))))


def _weights(
    rehearsal: Rehearsal, compared: Sequence[Comparison], passes: PlainPass, wrong: Sequence[Comparison]
) -> Check:
    """Whether the gradient that reaches the optimizer is the one that the slopes lead to."""
    name = "objective/weights"
    grpo = rehearsal.settings.grpo
    if message := _scored_otherwise(rehearsal, passes):
        return Check(name, "fail", message, {}, "score completions at the temperature that they are sampled at")
    if any(c.update.gradient is not None for c in wrong):
        return Check(name, "warn", "not judged: the slopes along the tokens are off already", {}, _FIX)
    try:
        gaps = compare_weights(rehearsal, compared, passes)
    except UnprovedError as error:
        return _unproved(name, error)
    evidence = {
        "updates": len(gaps),
        "largest_distance": max((gap.distance for gap in gaps), default=0.0),
        "merge": grpo.merge.kind,
        "exact": rehearsal.exact,
    }
    says = next((gap.says for gap in gaps if gap.says), None)
    if not gaps and not says:
        says = "no gradient reached the optimizer"
    right = (
        f"the gradient of the weights, merged by {grpo.merge.kind} and clipped, is the one that these slopes lead to"
    )
    return judged(
        name, says, right, evidence, "look at the merging, at what scales the loss, and at what clears gradients"
    )
