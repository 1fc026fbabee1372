"""Rewards on their way: parts to the total, the total to what the estimator gets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from levelhead.preflight.known import KnownAnswers, known_answers, scores_of
from levelhead.recipe.objective import CustomShaper, Shaping
from levelhead.records import Group, Score, Turn
from levelhead.training.prepare import make_objective
from oracle.choice import made_up
from oracle.context import PreflightContext
from oracle.result import Check, judged
from oracle.textbook.records import Attempt
from oracle.textbook.rewards import Moments, shaped


def check_roundtrip(context: PreflightContext) -> Iterator[Check]:
    """Add up the parts of known answers, and follow made-up rewards to the estimator."""
    for name in context.setup.tasks:
        probes = known_answers(context, name)
        if probes is not None:
            yield _total(name, probes, scores_of(context, probes, probes.answers))
    if context.grpo is not None:
        yield from _shaped(context)


def _total(name: str, probes: KnownAnswers, scores: Sequence[Score | None]) -> Check:
    """The total is the weighted sum of the parts, with the weights that the task declares."""
    check, compared, wrong = f"rewards/total/{name}", 0, None
    weights = probes.task.part_weights
    if weights is None:
        return Check(check, "pass", "the task declares no weights of its parts")
    for score in scores:
        if score is None or not (score.valid or any(score.parts.values())):
            continue  # an answer that could not be read gets what the task gives these
        compared += 1
        total = math.fsum(weights.get(part, 0.0) * value for part, value in score.parts.items())
        if not math.isclose(total, score.total, rel_tol=1e-6, abs_tol=1e-6) and wrong is None:
            parts = ", ".join(f"{weights.get(part, 0.0):g} x {value:.4g}" for part, value in score.parts.items())
            wrong = f"an answer's total is {score.total:.4g}, the weighted sum of its parts {total:.4g} ({parts})"
    evidence = {"answers": compared, "weights": dict(weights)}
    fix = "add every part once, with tasks[].reward_weights (or the task's own), and nothing else"
    return judged(check, wrong, f"{compared} totals are the weighted sums of their parts", evidence, fix)


def _shaped(context: PreflightContext) -> Iterator[Check]:
    """What the estimator gets is the total, shaped as the recipe says and by nothing else."""
    grpo = context.grpo
    assert grpo is not None
    _, estimator = make_objective(context.recipe, grpo, context.setup.tasks)
    wrong, evidence = None, {}
    unproved: list[str] = []
    for section in context.recipe.tasks:
        name = section.title
        if isinstance(section.shaping.length, CustomShaper):
            unproved.append(name)
            continue
        prompts = list(itertools.islice(context.setup.tasks[name].prompts("train", 0), 3))
        rewards = [(1.0, 0.25, -0.5, 0.75), (0.5, 0.0, 0.0, 3.0), (0.125, 0.5, 1.0, -2.0)]
        groups = [_lengthy(made_up(p, r), 3 + 5 * i) for i, (p, r) in enumerate(zip(prompts, rewards, strict=False))]
        seen = [estimator.shape(name, [group])[0].tolist() for group in groups]
        told = [_by_the_book(section.shaping, group, grpo.sampling.max_new_tokens) for group in groups]
        evidence[name] = {"shaped": seen, "expected": told}
        for row, expected in zip(seen, told, strict=True):
            off = _reordered(row, expected) if section.shaping.zscore is not None else _differing(row, expected)
            if off is not None and wrong is None:
                wrong = (
                    f"a reward of task {name!r} is {off[0]:.4g} once shaped, and {off[1]:.4g} by its tasks[].shaping"
                )
    if unproved and wrong is None:
        message = f"tasks[].shaping.length.kind: custom of {', '.join(unproved)} has no textbook here: it is not proved"
        yield Check("rewards/shaped", "warn", message, evidence, "hold it against a second implementation of your own")
        return
    fix = "shape as the recipe says: length penalty, running z-score, scale, clip, in this order, and nothing else"
    yield judged(
        "rewards/shaped", wrong, "made-up rewards reach the estimator as the recipe shapes them", evidence, fix
    )


def _by_the_book(section: Shaping, group: Group, budget: int) -> list[float]:
    """Return the rewards of a group as the textbook shapes them.

    Where there is a running z-score they are those before it: what it makes of them depends on earlier batches.
    """
    steady = Shaping(length=section.length) if section.zscore is not None else section
    nothing = np.zeros(0)
    attempts = [Attempt(r.reward, {}, {}, (r.length,), nothing, nothing) for r in group.rollouts]
    return shaped(steady, budget, [list(group.rewards)], [attempts], Moments())[0]


def _differing(row: Sequence[float], expected: Sequence[float]) -> tuple[float, float] | None:
    pairs = zip(row, expected, strict=True)
    return next(((a, b) for a, b in pairs if not math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6)), None)


def _reordered(row: Sequence[float], expected: Sequence[float]) -> tuple[float, float] | None:
    """Return a reward that stands above another after shaping and below it before: running statistics keep order."""
    pairs = list(zip(row, expected, strict=True))
    return next(((a, b) for a, b in pairs for c, d in pairs if b < d - 1e-9 and a > c + 1e-9), None)


def _lengthy(group: Group, length: int) -> Group:
    """Return a group whose rollouts have tokens, one half as many again each time."""
    rollouts = []
    for i, rollout in enumerate(group.rollouts):
        n = length + i * length // 2
        turn = Turn((0,), (0,) * n, (0.0,) * n, (0.0,) * n, "stop")
        rollouts.append(replace(rollout, turns=(turn,)))
    return replace(group, rollouts=tuple(rollouts))
