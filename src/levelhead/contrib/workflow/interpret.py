"""Jobs, outcomes, and walking a workflow: the one place that says what arrows, branches, loops and ``done`` mean.

What an operator does is the business of a :class:`Backend`: a simulated one, or one that asks a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeAlias, TypeVar

from levelhead.contrib.workflow.language import Call, Chain, Conditional, Done, Loop, Node, Parallel
from levelhead.contrib.workflow.operators import OPERATORS, Role
from levelhead.contrib.workflow.problems import Problem
from levelhead.waiting import all_of


@dataclass(frozen=True, slots=True)
class Job:
    """One workflow to run on one problem.

    Attributes:
        tree: The workflow, checked.
        text: Its canonical text.
        problem: What it is run on.
        sample: Tells runs of the same workflow on the same problem apart; equal jobs have equal outcomes.
    """

    tree: Node
    text: str
    problem: Problem
    sample: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run led to.

    Attributes:
        level: How right the answer is, one of ``reward.LEVELS``.
        first_level: How right the first draft was, before anything judged, revised or chose.
        tokens: Tokens its operators used; answers that came from a cache count as if they had been asked for.
        calls: Operators that were run.
        answer: The final answer; empty in the simulator.
        note: Anything a reader of samples should know (why there is no answer).
    """

    level: float
    first_level: float
    tokens: int
    calls: int
    answer: str = ""
    note: str = ""


class Executor(Protocol):
    """Runs workflows on their problems."""

    async def execute(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Run all jobs and return their outcomes in order.

        Raises:
            RewardError: The jobs cannot be run to their end; nothing of them is lost where a cache is kept.
        """
        ...

    def metrics(self) -> Mapping[str, float]:
        """Return what running workflows has cost so far; nothing where it costs nothing."""
        return {}

    def drain_news(self) -> Sequence[str]:
        """Return what a person should know of the executor since the last call, a line each."""
        return ()


D = TypeVar("D")

Path: TypeAlias = tuple[int, ...]
"""Where in a run an operator is called: the index of each step, branch and pass on the way down."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judging operator said of a draft.

    Attributes:
        fault: Whether it found one.
        by: The operator.
        note: What it said, for whoever revises.
    """

    fault: bool
    by: str
    note: str = ""


class Backend(Protocol[D]):
    """What the operators do; ``D`` is whatever a draft is."""

    async def draft(self, operator: str, path: Path, before: D | None) -> D:
        """Write a draft, with the draft so far at hand where there is one."""
        ...

    async def judge(self, operator: str, path: Path, draft: D) -> Verdict:
        """Say whether a draft has a fault."""
        ...

    async def revise(self, path: Path, draft: D, verdict: Verdict) -> D:
        """Rewrite a draft after a verdict on it, whatever the verdict said."""
        ...

    async def reduce(self, path: Path, draft: D) -> D:
        """Reduce a draft to the bare answer."""
        ...

    async def vote(self, operator: str, path: Path, drafts: Sequence[D]) -> D:
        """Return the draft that most votes are for."""
        ...


@dataclass(frozen=True, slots=True)
class _State(Generic[D]):
    drafts: tuple[D, ...] = ()
    verdict: Verdict | None = None
    done: bool = False

    @property
    def draft(self) -> D | None:
        return self.drafts[0] if self.drafts else None


async def run(workflow: Node, backend: Backend[D]) -> D:
    """Run a checked workflow and return its last draft.

    Steps run in order; the branches of a parallel block run at once.  ``A ? B : C`` runs A, then B where it found a
    fault and C where it found none.  A loop ends after its last pass, or with ``done``.

    Raises:
        ValueError: An operator lacks an input, which :func:`check` would have found.
    """
    start: _State[D] = _State()
    state = await _run(workflow, start, (), backend)
    if len(state.drafts) != 1:
        raise ValueError(f"a workflow must end with one draft, this one ended with {len(state.drafts)}; check it first")
    return state.drafts[0]


async def _run(node: Node, state: _State[D], path: Path, backend: Backend[D]) -> _State[D]:
    match node:
        case Call():
            return await _call(node, state, path, backend)
        case Done():
            return replace(state, done=True)
        case Chain(steps):
            for i, step in enumerate(steps):
                state = await _run(step, state, (*path, i), backend)
                if state.done:
                    break
            return state
        case Conditional(test, fault, clear):
            state = await _call(test, state, (*path, 0), backend)
            has_fault = state.verdict is not None and state.verdict.fault
            return await _run(fault if has_fault else clear, state, (*path, 1), backend)
        case Loop(body, times):
            for i in range(times):
                state = await _run(body, state, (*path, i), backend)
                if state.done:
                    break
            return replace(state, done=False)
        case Parallel(branches):
            ends = await all_of(_run(branch, state, (*path, i), backend) for i, branch in enumerate(branches))
            return _State(tuple(end.drafts[0] for end in ends))


async def _call(call: Call, state: _State[D], path: Path, backend: Backend[D]) -> _State[D]:
    name = call.operator
    role = OPERATORS[name].role
    if role is Role.VOTE:
        return _State((await backend.vote(name, path, state.drafts),))
    if role is Role.DRAFT:
        return _State((await backend.draft(name, path, state.draft),))
    draft = state.drafts[0]
    if role is Role.JUDGE:
        return _State(state.drafts, await backend.judge(name, path, draft))
    if role is Role.FORMAT:
        return _State((await backend.reduce(path, draft),))
    if state.verdict is None:
        raise ValueError(f"{name} has no verdict to act on; check the workflow before running it")
    return _State((await backend.revise(path, draft, state.verdict),))
