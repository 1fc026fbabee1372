"""The typed tree of a workflow.  Equal workflows are equal trees: positions do not count, groups are dissolved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias


class WorkflowError(ValueError):
    """A text is no workflow, or a workflow that cannot be run.

    Attributes:
        kind: ``syntax`` the text does not follow the grammar, ``static`` it does, but what it asks for cannot work.
        column: Where, counted in characters from 1.
        problem: What was found.
        expected: What could have stood there instead, in words; empty where nothing could.
    """

    def __init__(
        self, kind: Literal["syntax", "static"], column: int, problem: str, expected: Sequence[str] = ()
    ) -> None:
        self.kind = kind
        self.column = column
        self.problem = problem
        self.expected = tuple(expected)
        wanted = " or ".join(part for part in (", ".join(expected[:-1]), *expected[-1:]) if part)
        super().__init__(f"column {column}: {problem}" + (f"; expected {wanted}" if wanted else ""))


@dataclass(frozen=True, slots=True)
class Call:
    """One operator to run, as ``Review``.

    Attributes:
        operator: Its name in the catalogue.
        column: Where it stood in the text, counted from 1; 0 for a tree that was not parsed.
    """

    operator: str
    column: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Done:
    """``done``: leave the innermost loop or parallel branch, or the workflow where there is neither."""

    column: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps one after the other: ``A -> B``.  Two or more, and none of them is itself a chain."""

    steps: tuple[Node, ...]

    def __post_init__(self) -> None:
        if len(self.steps) < 2:
            raise ValueError(f"a chain has two or more steps, got {len(self.steps)}")
        if any(isinstance(step, Chain) for step in self.steps):
            raise ValueError("a chain within a chain means the same as one chain; build it with chain()")


@dataclass(frozen=True, slots=True)
class Parallel:
    """TreeAttention that start from the same point and leave one draft each: ``[A, A -> B]``."""

    branches: tuple[Node, ...]
    column: int = field(default=0, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.branches:
            raise ValueError("a parallel block has at least one branch")


@dataclass(frozen=True, slots=True)
class Loop:
    """``times`` passes over a body, fewer where ``done`` is reached: ``(Review ? Revise : done) * 3``."""

    body: Node
    times: int
    column: int = field(default=0, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.times < 0:
            raise ValueError(f"a loop cannot run {self.times} times")


@dataclass(frozen=True, slots=True)
class Conditional:
    """Judge, then go one of two ways: ``Review ? Revise : done``.

    Attributes:
        test: The operator whose verdict decides.
        fault: What runs where it found a fault.
        clear: What runs where it found none.
    """

    test: Call
    fault: Node
    clear: Node


Node: TypeAlias = Call | Done | Chain | Parallel | Loop | Conditional


def chain(*steps: Node) -> Node:
    """Put steps one after the other: chains among them are dissolved, a single step stays itself.

    Raises:
        ValueError: No step is given.
    """
    flat: list[Node] = []
    for step in steps:
        flat.extend(step.steps if isinstance(step, Chain) else [step])
    if not flat:
        raise ValueError("a chain needs at least one step")
    return flat[0] if len(flat) == 1 else Chain(tuple(flat))


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes directly below one, in reading order."""
    match node:
        case Chain(steps):
            return steps
        case Parallel(branches):
            return branches
        case Loop(body):
            return (body,)
        case Conditional(test, fault, clear):
            return (test, fault, clear)
        case _:
            return ()


def nodes(node: Node) -> Iterator[Node]:
    """Yield a node and all below it, in reading order; a loop's body counts once."""
    yield node
    for child in children(node):
        yield from nodes(child)


def calls(node: Node) -> Iterator[Call]:
    """Yield every operator as written, in reading order; a loop's body counts once."""
    return (one for one in nodes(node) if isinstance(one, Call))


def depth(node: Node) -> int:
    """Return how deep conditionals, loops and parallel blocks are nested: 0 for a plain chain."""
    below = max((depth(child) for child in children(node)), default=0)
    return below + isinstance(node, Parallel | Loop | Conditional)


def start_column(node: Node) -> int:
    """Return the column a node starts at; 0 for a tree that was not parsed."""
    match node:
        case Chain(steps):
            return start_column(steps[0])
        case Conditional(test):
            return test.column
        case _:
            return node.column
