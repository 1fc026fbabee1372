"""What a grammar cannot say: every operator gets the inputs it needs, on every path, within bounds.

A workflow is walked once with an abstract state, the number of drafts at hand and what is known of the last verdict;
where paths meet, only what holds on all of them is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from levelhead.contrib.workflow.language.tree import (
    Call,
    Chain,
    Conditional,
    Done,
    Loop,
    Node,
    Parallel,
    WorkflowError,
    calls,
    depth,
    nodes,
    start_column,
)
from levelhead.contrib.workflow.operators import OPERATORS, Role


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what a workflow may ask for.

    Attributes:
        depth: Conditionals, loops and parallel blocks within each other.
        loop: Passes of one loop.
        calls: Operators run on the most expensive path.
    """

    depth: int = 4
    loop: int = 5
    calls: int = 24


class Drafts(Enum):
    """How many drafts are at hand."""

    NONE = "no"
    ONE = "one"
    MANY = "many"


class Verdict(Enum):
    """What is known of the last verdict on the draft at hand."""

    ABSENT = "absent"
    OPEN = "open"
    FAULT = "fault"
    CLEAR = "clear"


@dataclass(frozen=True, slots=True)
class _State:
    drafts: Drafts
    verdict: Verdict = Verdict.ABSENT


@dataclass(frozen=True, slots=True)
class _Exit:
    """How a node is left: by falling through, by ``done``, by either; ``None`` where it is not."""

    next: _State | None
    done: _State | None = None


def check(node: Node, limits: Limits | None = None) -> None:
    """Check that a workflow can be run.

    Raises:
        WorkflowError: It cannot (``kind`` is ``static``): the first thing wrong in reading order, and its column.
    """
    limits = limits or Limits()
    _check_bounds(node, limits)
    after = _flow(node, _State(Drafts.NONE))
    state = _meet(after.next, after.done, start_column(node))
    if state is None or state.drafts is Drafts.NONE:
        raise _fault(node, "the workflow ends without an answer: no operator has written a draft")
    if state.drafts is Drafts.MANY:
        raise _fault(node, "the workflow ends with several drafts: put ScEnsemble or MdEnsemble after the branches")


def most_calls(node: Node) -> int:
    """Return how many operators the most expensive path runs."""
    match node:
        case Call():
            return 1
        case Done():
            return 0
        case Chain(steps):
            return sum(map(most_calls, steps))
        case Parallel(branches):
            return sum(map(most_calls, branches))
        case Loop(body, times):
            return times * most_calls(body)
        case Conditional(_, fault, clear):
            return 1 + max(most_calls(fault), most_calls(clear))


def _check_bounds(node: Node, limits: Limits) -> None:
    for loop in (one for one in nodes(node) if isinstance(one, Loop)):
        if not 1 <= loop.times <= limits.loop:
            raise WorkflowError("static", loop.column, f"a loop runs 1 to {limits.loop} times, not {loop.times}")
    if depth(node) > limits.depth:
        raise _fault(node, f"nested {depth(node)} deep; the bound is {limits.depth}")
    if most_calls(node) > limits.calls:
        raise _fault(node, f"may run {most_calls(node)} operators; the bound is {limits.calls}")


def _flow(node: Node, state: _State) -> _Exit:
    match node:
        case Call():
            return _Exit(_run(node, state))
        case Done(column):
            _need_one(state, column, "done")
            return _Exit(None, state)
        case Chain():
            return _flow_chain(node, state)
        case Conditional():
            return _flow_conditional(node, state)
        case Loop():
            return _flow_loop(node, state)
        case Parallel():
            return _flow_parallel(node, state)


def _run(call: Call, state: _State) -> _State:
    name, column, role = call.operator, call.column, OPERATORS[call.operator].role
    if role is Role.VOTE:
        if state.drafts is not Drafts.MANY:
            raise WorkflowError("static", column, f"{name} chooses among several drafts: put '[..., ...]' before it")
        return _State(Drafts.ONE)
    if role is Role.DRAFT:
        if state.drafts is Drafts.MANY:
            raise WorkflowError("static", column, f"{name} cannot take several drafts: put an ensemble before it")
        return _State(Drafts.ONE)
    _need_one(state, column, name)
    if role is Role.JUDGE:
        return _State(Drafts.ONE, Verdict.OPEN)
    if role is Role.REVISE:
        if state.verdict is Verdict.ABSENT:
            raise WorkflowError("static", column, f"{name} has no verdict to act on: put Review or Test before it")
        if state.verdict is Verdict.CLEAR:
            raise WorkflowError("static", column, f"{name} stands where no fault was found: it belongs before the ':'")
    return _State(Drafts.ONE)


def _flow_chain(node: Chain, state: _State) -> _Exit:
    done: _State | None = None
    current: _State | None = state
    for step in node.steps:
        if current is None:
            raise _fault(step, "nothing after 'done' is ever run")
        after = _flow(step, current)
        current, done = after.next, _meet(done, after.done, start_column(step))
    return _Exit(current, done)


def _flow_conditional(node: Conditional, state: _State) -> _Exit:
    if OPERATORS[node.test.operator].role is not Role.JUDGE:
        problem = f"{node.test.operator} gives no verdict to decide on: Review or Test must stand before '?'"
        raise WorkflowError("static", node.test.column, problem)
    judged = _run(node.test, state)
    fault = _flow(node.fault, _State(judged.drafts, Verdict.FAULT))
    clear = _flow(node.clear, _State(judged.drafts, Verdict.CLEAR))
    column = node.test.column
    return _Exit(_meet(fault.next, clear.next, column), _meet(fault.done, clear.done, column))


def _flow_loop(node: Loop, state: _State) -> _Exit:
    after = _flow(node.body, state)
    leaves = _meet(after.next, after.done, node.column)
    if node.times > 1 and after.next is not None:
        again = _flow(node.body, after.next)
        leaves = _meet(leaves, _meet(again.next, again.done, node.column), node.column)
    if leaves is not None:
        _need_one(leaves, node.column, "a loop")
    return _Exit(leaves)


def _flow_parallel(node: Parallel, state: _State) -> _Exit:
    if len(node.branches) < 2:
        raise WorkflowError("static", node.column, "an ensemble needs several drafts: give two or more branches")
    for branch in node.branches:
        if not any(OPERATORS[call.operator].role is not Role.JUDGE for call in calls(branch)):
            raise _fault(branch, "this branch writes no draft of its own")
        after = _flow(branch, state)
        ends = _meet(after.next, after.done, start_column(branch))
        if ends is None or ends.drafts is not Drafts.ONE:
            raise _fault(branch, "a branch must leave exactly one draft")
    return _Exit(_State(Drafts.MANY))


def _meet(one: _State | None, other: _State | None, column: int) -> _State | None:
    if one is None or other is None:
        return one or other
    if one.drafts is not other.drafts:
        problem = f"one path leaves {one.drafts.value} draft(s), another {other.drafts.value}"
        raise WorkflowError("static", column, problem)
    if one.verdict is other.verdict:
        return one
    absent = Verdict.ABSENT in (one.verdict, other.verdict)
    return _State(one.drafts, Verdict.ABSENT if absent else Verdict.OPEN)


def _need_one(state: _State, column: int, who: str) -> None:
    if state.drafts is Drafts.NONE:
        raise WorkflowError("static", column, f"{who} needs a draft: begin with an operator that writes one")
    if state.drafts is Drafts.MANY:
        raise WorkflowError("static", column, f"{who} takes one draft: put ScEnsemble or MdEnsemble before it")


def _fault(node: Node, problem: str) -> WorkflowError:
    return WorkflowError("static", start_column(node), problem)
