"""The exact distribution of what a workflow does in the simulator, by walking it with probabilities.

The sampled walk and this one share the model's numbers; a test holds the two against each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from levelhead.contrib.workflow.language import Call, Chain, Conditional, Done, Loop, Node, Parallel
from levelhead.contrib.workflow.operators import OPERATORS, Role
from levelhead.contrib.workflow.problems.base import DIFFICULTIES, Difficulty, Domain
from levelhead.contrib.workflow.simulator import model
from levelhead.contrib.workflow.simulator.model import Quality, World


class Point(NamedTuple):
    """Where a run may stand.

    Attributes:
        drafts: States of the drafts at hand.
        judged: The last verdict on the draft: the operator it came from, and whether it found a fault.
        done: Whether ``done`` was reached.
        tokens: Tokens used so far.
    """

    drafts: tuple[Quality, ...] = ()
    judged: tuple[str, bool] | None = None
    done: bool = False
    tokens: int = 0


Cloud = Mapping[Point, float]
"""Probability of each point; sums to 1."""

Outcomes = Mapping[tuple[Quality, int], float]
"""Probability of each final draft and number of tokens; sums to 1."""


@lru_cache(maxsize=65536)
def outcomes(workflow: Node, domain: Domain, difficulty: Difficulty) -> Outcomes:
    """Return what a checked workflow ends with on a problem of a class, over plain and tricky problems."""
    tricky = model.TRICKY_SHARE[DIFFICULTIES.index(difficulty)]
    total: dict[tuple[Quality, int], float] = defaultdict(float)
    for share, world in ((1.0 - tricky, World(domain, difficulty)), (tricky, World(domain, difficulty, tricky=True))):
        for point, chance in _walk(workflow, {Point(): 1.0}, world).items():
            total[point.drafts[0], point.tokens] += share * chance
    return dict(total)


def _walk(node: Node, cloud: Cloud, world: World) -> Cloud:
    match node:
        case Call():
            return _collect((end, p * q) for point, p in cloud.items() for end, q in _call(node, point, world))
        case Done():
            return _collect((Point(point.drafts, point.judged, True, point.tokens), p) for point, p in cloud.items())
        case Chain(steps):
            for step in steps:
                cloud = _onward(cloud, step, world)
            return cloud
        case Conditional(test, fault, clear):
            judged = _walk(test, cloud, world)
            with_fault = {point: p for point, p in judged.items() if _has_fault(point)}
            other = {point: p for point, p in judged.items() if not _has_fault(point)}
            return _collect([*_walk(fault, with_fault, world).items(), *_walk(clear, other, world).items()])
        case Loop():
            return _loop(node, cloud, world)
        case Parallel():
            return _collect(
                (end, p * q) for point, p in cloud.items() for end, q in _parallel(node, point, world).items()
            )


def _loop(node: Loop, cloud: Cloud, world: World) -> Cloud:
    for _ in range(node.times):
        cloud = _onward(cloud, node.body, world)
    return _collect((Point(point.drafts, point.judged, False, point.tokens), p) for point, p in cloud.items())


@lru_cache(maxsize=4096)  # candidates share their parallel blocks, which take most of the time
def _parallel(node: Parallel, start: Point, world: World) -> Cloud:
    # An ensemble does not care which branch a draft came from: sorting merges equal collections.
    cloud: Cloud = {Point(tokens=start.tokens): 1.0}
    ends_of: dict[Node, Cloud] = {}
    begin = {Point(start.drafts, start.judged): 1.0}
    for branch in node.branches:
        if branch not in ends_of:
            ends_of[branch] = _walk(branch, begin, world)
        ends = ends_of[branch]
        cloud = _collect(
            (Point(tuple(sorted((*held.drafts, end.drafts[0]))), tokens=held.tokens + end.tokens), p * q)
            for held, p in cloud.items()
            for end, q in ends.items()
        )
    return cloud


def _call(call: Call, at: Point, world: World) -> Iterable[tuple[Point, float]]:
    name = call.operator
    role = OPERATORS[name].role
    used = at.tokens + model.tokens(name, world)
    if role is Role.JUDGE:
        chance = model.notices(name, world, at.drafts[0])
        return [
            (Point(at.drafts, (name, True), tokens=used), chance),
            (Point(at.drafts, (name, False), tokens=used), 1.0 - chance),
        ]
    if role is Role.DRAFT:
        chances = model.draft(name, world, at.drafts[0] if at.drafts else None)
    elif role is Role.VOTE:
        chances = model.vote(name, world, at.drafts)
    elif role is Role.FORMAT:
        chances = model.reduce(world, at.drafts[0])
    elif at.judged is None:
        raise ValueError(f"{name} has no verdict to act on; check the workflow first")
    else:
        chances = model.revise(world, at.drafts[0], *at.judged)
    return [(Point((quality,), tokens=used), chance) for chance, quality in chances]


def _onward(cloud: Cloud, node: Node, world: World) -> Cloud:
    held = {point: p for point, p in cloud.items() if point.done}
    moving = {point: p for point, p in cloud.items() if not point.done}
    return _collect([*held.items(), *_walk(node, moving, world).items()])


def _has_fault(point: Point) -> bool:
    return point.judged is not None and point.judged[1]


def _collect(pairs: Iterable[tuple[Point, float]]) -> Cloud:
    total: dict[Point, float] = defaultdict(float)
    for point, chance in pairs:
        if chance > 0:
            total[point] += chance
    return total
