"""Which workflow suits which problem in the simulator, by the exact distribution of what a workflow does there.

The sampled walk and this one share the model's numbers; a test holds the two against each other.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from levelhead.contrib.workflow import reward
from levelhead.contrib.workflow.language import (
    Call,
    Chain,
    Conditional,
    Done,
    Extraction,
    Limits,
    Loop,
    Node,
    Parallel,
    WorkflowError,
    check,
    parse,
    to_text,
)
from levelhead.contrib.workflow.operators import OPERATORS, Role
from levelhead.contrib.workflow.problems import Problem
from levelhead.contrib.workflow.simulator import model
from levelhead.contrib.workflow.simulator.model import DRAFT_RIGHT, Quality, World
from levelhead.recipe.workflow import RewardConfig
from levelhead.tasks.datasets.base import DIFFICULTIES, Difficulty, Domain


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
        case Loop(body, times):
            for _ in range(times):
                cloud = _onward(cloud, body, world)
            return _collect((Point(point.drafts, point.judged, False, point.tokens), p) for point, p in cloud.items())
        case Parallel():
            return _collect(
                (end, p * q) for point, p in cloud.items() for end, q in _parallel(node, point, world).items()
            )


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


_JUDGES = ("Review", "Test")
_ENSEMBLES = ("ScEnsemble", "MdEnsemble")


@dataclass(frozen=True, slots=True)
class Expected:
    """What a workflow does on average on a class of problems, for a policy that writes it and nothing else.

    Attributes:
        reward: Expected reward.
        right: Chance of a right answer.
        tokens: Expected tokens.
    """

    reward: float
    right: float
    tokens: float


def candidates() -> Iterator[str]:
    """Yield the canonical texts of the workflows that are chosen among, each with and without Format at the end.

    Every drafting operator alone and after another; judged and revised in a chain, a conditional and loops; judged and
    handed to another drafting operator where a fault was found; in ensembles of three and five, pure and mixed, also
    judged and revised.
    """
    for body in _bodies():
        yield body
        if not body.endswith(": done"):
            yield f"{body} -> Format"


def _bodies() -> Iterator[str]:
    drafts = tuple(DRAFT_RIGHT)
    yield from drafts
    for a, b in itertools.permutations(drafts, 2):
        yield f"{a} -> {b}"
        for judge in _JUDGES:
            yield f"{a} -> {judge} ? {b} : done"
    for start, judge in itertools.product(drafts, _JUDGES):
        yield f"{start} -> {judge} -> Revise"
        yield f"{start} -> {judge} ? Revise : done"
        yield f"{start} -> ({judge} ? Revise : done) * 2"
        yield f"{start} -> ({judge} ? Revise : done) * 3"
    for ensemble in _ENSEMBLES:
        for draft in drafts:
            yield f"[{', '.join([draft] * 3)}] -> {ensemble}"
            yield f"[{', '.join([draft] * 5)}] -> {ensemble}"
            for judge in _JUDGES:
                yield f"[{', '.join([draft] * 3)}] -> {ensemble} -> {judge} ? Revise : done"
        for a, b in itertools.permutations(drafts, 2):
            yield f"[{a}, {a}, {b}] -> {ensemble}"


@lru_cache(maxsize=8)
def catalogue(limits: Limits) -> tuple[tuple[str, Node], ...]:
    """Return the candidates that keep within the limits, as canonical text and tree, without repeats.

    Raises:
        ValueError: The limits leave none.
    """
    tree_by_text: dict[str, Node] = {}
    for text in candidates():
        tree = parse(text)
        try:
            check(tree, limits)
        except WorkflowError:
            continue
        tree_by_text[to_text(tree)] = tree
    if not tree_by_text:
        raise ValueError("the limits leave no workflow to choose")
    return tuple(tree_by_text.items())


@lru_cache(maxsize=65536)
def expected(tree: Node, domain: Domain, difficulty: Difficulty, config: RewardConfig) -> Expected:
    """Return what a workflow is worth on a class of problems, exactly."""
    looks = reward.looks(Extraction(tree, to_text(tree), "bare", alone=True))
    value = right = used = 0.0
    for (quality, tokens), chance in outcomes(tree, domain, difficulty).items():
        level = reward.LEVELS[quality]
        value += chance * reward.total(config, reward.parts(config, looks, level, tokens))
        right += chance * (level == reward.LEVELS[-1])
        used += chance * tokens
    return Expected(value, right, used)


@lru_cache(maxsize=64)
def best_workflow(domain: Domain, difficulty: Difficulty, config: RewardConfig, limits: Limits) -> str:
    """Return the candidate of the highest expected reward on a class of problems; of equals the shortest."""
    return _best(limits, lambda tree: expected(tree, domain, difficulty, config).reward)


def best_fixed_workflow(problems: Iterable[Problem], config: RewardConfig, limits: Limits | None = None) -> str:
    """Return the single candidate that scores best on average over problems: the bar that a policy must clear.

    Raises:
        ValueError: There is no problem.
    """
    return _best_fixed(_classes(problems), config, limits or Limits())


def bars(problems: Iterable[Problem], config: RewardConfig, limits: Limits) -> tuple[float, float]:
    """Return the expected reward, averaged over problems, of the best fixed workflow and of the best by class.

    Raises:
        ValueError: There is no problem.
    """
    classes = _classes(problems)
    fixed = _mean(parse(_best_fixed(classes, config, limits)), classes, config)
    best = {
        place: expected(parse(best_workflow(*place, config, limits)), *place, config).reward for place, _ in classes
    }
    return fixed, sum(n * best[place] for place, n in classes) / sum(n for _, n in classes)


_Classes = tuple[tuple[tuple[Domain, Difficulty], int], ...]


def _classes(problems: Iterable[Problem]) -> _Classes:
    counts = Counter((problem.domain, problem.difficulty) for problem in problems)
    if not counts:
        raise ValueError("the best fixed workflow is one for some problems; none was given")
    return tuple(sorted(counts.items()))


@lru_cache(maxsize=64)
def _best_fixed(classes: _Classes, config: RewardConfig, limits: Limits) -> str:
    return _best(limits, lambda tree: _mean(tree, classes, config))


def _mean(tree: Node, classes: _Classes, config: RewardConfig) -> float:
    total = sum(n * expected(tree, *place, config).reward for place, n in classes)
    return total / sum(n for _, n in classes)


def _best(limits: Limits, value: Callable[[Node], float]) -> str:
    # Rounded, so that workflows equal but for the last bit of a sum are equal, and the shorter one wins.
    return min(catalogue(limits), key=lambda entry: (-round(value(entry[1]), 9), len(entry[0]), entry[0]))[0]


def varied_workflows(limits: Limits) -> tuple[str, ...]:
    """Return a mix of valid workflows in which every structure occurs, good and bad for any one problem.

    Raises:
        ValueError: The limits leave none.
    """
    forms = (
        "{0}",
        "{0} -> Format",
        "{0} -> Review -> Revise",
        "{0} -> Review ? Revise : done",
        "{0} -> (Test ? Revise : done) * 3",
        "[{0}, {0}, {0}] -> ScEnsemble",
        "[{0}, {0}, {0}] -> ScEnsemble -> Format",
    )
    texts = [form.format(draft) for draft in DRAFT_RIGHT for form in forms]
    allowed = {text for text, _ in catalogue(limits)}
    workflows = tuple(
        text for text in [*texts, "Custom -> Programmer", "AnswerGenerate -> Programmer"] if text in allowed
    )
    if not workflows:
        raise ValueError("the limits leave no workflow to show")
    return workflows
