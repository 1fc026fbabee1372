"""Rewards on their way: text to tokens and back, parts to the total, the total to what the estimator gets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from levelhead.errors import RewardError
from levelhead.preflight.choice import made_up
from levelhead.preflight.context import PreflightContext
from levelhead.preflight.result import Check, judged
from levelhead.preflight.textbook.records import Attempt
from levelhead.preflight.textbook.rewards import Moments, shaped
from levelhead.recipe.shaping import CustomShaper, Shaping
from levelhead.records import Group, Score, Turn
from levelhead.rollout.draws import derive
from levelhead.tasks.base import Answer, SingleTurnTask
from levelhead.training.prepare import make_objective, name_of

PROMPTS = 16
"""Training prompts of a task whose answers are scored."""
GIBBERISH = "lorem ipsum 12 dolor"
SAME = 1e-9
"""Rewards nearer to each other are equal."""
SHORT_OF = 0.1
"""Share of the declared range by which a perfect answer may miss its top before it is a failure."""


@dataclass(frozen=True, slots=True)
class Known:
    """Answers of known worth, one a prompt, so that no two of them are answers to the same prompt.

    Attributes:
        task: Scores them, by rules alone.
        answers: With the tokens that a policy would write.
        kinds: ``oracle``, ``other`` (a perfect answer to another prompt), ``cut``, ``empty`` or ``gibberish``.
    """

    task: SingleTurnTask
    answers: list[Answer]
    kinds: list[str]


def known_answers(context: PreflightContext, name: str) -> Known | None:
    """Return answers to training prompts of a task; ``None`` where they are episodes, or cost calls elsewhere."""
    task = context.setup.tasks[name]
    if not isinstance(task, SingleTurnTask) or (rules := task.rules) is None:
        return None
    collector = context.collector()
    wanted = itertools.islice(task.prompts("train", derive(context.seed, "known", name)), PROMPTS)
    prompts = list({prompt.id: prompt for prompt in wanted}.values())
    perfect = [answer[0] if (answer := task.oracle(prompt)) else None for prompt in prompts]
    answers, kinds = [], []
    for i, prompt in enumerate(prompts):
        own, other = perfect[i], perfect[(i + 1) % len(prompts)]
        kind = ("oracle", "other", "cut", "oracle", "empty", "oracle", "other", "gibberish")[i % 8]
        texts = {"oracle": own, "other": other, "cut": own[: len(own) // 2] if own else None, "empty": ""}
        text = texts.get(kind, GIBBERISH)
        if text is None:
            kind, text = "gibberish", f"{GIBBERISH} {i}"
        answers.append(Answer(prompt, text, collector.completion_ids(prompt, text)))
        kinds.append(kind)
    return Known(rules, answers, kinds) if answers else None


def scores_of(context: PreflightContext, probes: Known, answers: Sequence[Answer]) -> list[Score | None]:
    """Return the scores of some answers, in one call."""
    return list(context.loop.run(probes.task.score_batch(answers)))


def check_roundtrip(context: PreflightContext) -> Iterator[Check]:
    """Follow known answers to their rewards, and made-up rewards to the estimator."""
    for name in context.setup.tasks:
        probes = known_answers(context, name)
        if probes is None:
            continue
        try:
            scores = scores_of(context, probes, probes.answers)
            yield _text(context, name, probes, scores)
            yield _total(name, probes, scores)
            yield _range(name, probes, scores)
        except RewardError as error:
            yield Check(f"rewards/round-trip/{name}", "fail", str(error).splitlines()[0], {}, "mend the reward")
    if context.grpo is not None:
        yield from _shaped(context)


def _text(context: PreflightContext, name: str, probes: Known, scores: Sequence[Score | None]) -> Check:
    """A perfect answer that the policy writes token for token is worth what its text is worth."""
    back = [replace(a, text=context.codec.decode(a.token_ids)) for a in probes.answers]
    after = scores_of(context, probes, back)
    again = scores_of(context, probes, probes.answers)  # what is not steady is not the tokens' doing
    pairs = zip(probes.kinds, scores, after, again, strict=True)
    off = [i for i, (kind, a, b, c) in enumerate(pairs) if kind != "gibberish" and not same(a, b) and same(a, c)]
    changed = sum(a.text != b.text for a, b in zip(probes.answers, back, strict=True))
    evidence: dict[str, Any] = {"answers": len(back), "texts_changed": changed, "scores_changed": len(off)}
    wrong = None
    if off:
        i = min(off, key=lambda at: probes.kinds[at] != "oracle")
        before, now = probes.answers[i].text, back[i].text
        at = next((n for n, (x, y) in enumerate(zip(before, now, strict=False)) if x != y), min(len(before), len(now)))
        near = slice(max(0, at - 20), at + 20)
        evidence |= {"text": before[:200], "after": now[:200]}
        wrong = (
            f"{len(off)} of {len(back)} answers score otherwise once they have been tokens ({shown(scores[i])} before, "
            f"{shown(after[i])} after): {before[near]!r} came back as {now[near]!r}"
        )
    fix = "the tokenizer loses what the reward looks for (white space, special tokens): let it do without"
    right = f"{len(back)} answers score the same as text and as tokens ({changed} texts differ)"
    return judged(f"rewards/round-trip/{name}", wrong, right, evidence, fix)


def same(a: Score | None, b: Score | None) -> bool:
    """Whether two scores are equal, part by part, up to the last digits."""
    if a is None or b is None:
        return a is b
    if a.parts.keys() != b.parts.keys() or a.valid != b.valid:
        return False
    pairs = [(a.total, b.total), *((a.parts[name], b.parts[name]) for name in a.parts)]
    return all(math.isclose(x, y, rel_tol=SAME, abs_tol=SAME) for x, y in pairs)


def shown(score: Score | None) -> str:
    """Return a total for a message."""
    return "no score" if score is None else f"{score.total:.4g}"


def _total(name: str, probes: Known, scores: Sequence[Score | None]) -> Check:
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


def _range(name: str, probes: Known, scores: Sequence[Score | None]) -> Check:
    """Perfect answers get the most that the task declares, the worst the least, and nothing lies outside."""
    check = f"rewards/range/{name}"
    declared = probes.task.reward_range
    totals = [score.total for score in scores if score is not None]
    if declared is None or not totals:
        return Check(check, "pass", "the task declares no least and most reward")
    low, high = declared
    perfect = [s.total for kind, s in zip(probes.kinds, scores, strict=True) if kind == "oracle" and s is not None]
    evidence = {"declared": [low, high], "seen": [min(totals), max(totals)], "perfect": perfect}
    slack = 1e-6 * max(1.0, high - low)
    outside = [total for total in totals if not low - slack <= total <= high + slack]
    if outside:
        wrong = f"a reward of {outside[0]:.4g} lies outside of the declared {low:g} to {high:g}"
        return Check(check, "fail", wrong, evidence, "mend the reward, or what the task declares")
    if perfect and min(perfect) < high - slack:
        far = high - min(perfect) > SHORT_OF * (high - low)
        wrong = f"a perfect answer gets {min(perfect):.4g} and the most is {high:g}: nobody can reach the top"
        return Check(check, "fail" if far else "warn", wrong, evidence, "mend the reward or the perfect answer")
    if min(totals) > low + slack:
        wrong = f"of {len(totals)} answers, empty ones and nonsense among them, none gets the declared least of {low:g}"
        wrong += f" (the worst has {min(totals):.4g})"
        return Check(
            check, "warn", wrong, evidence, "a floor that nothing reaches hides how bad an answer is: declare it"
        )
    right = f"perfect answers get {high:g}, the worst {low:g}, and nothing lies outside"
    return Check(check, "pass", right if perfect else f"rewards lie from {low:g} to {high:g}", evidence)


def _shaped(context: PreflightContext) -> Iterator[Check]:
    """What the estimator gets is the total, shaped as the recipe says and by nothing else."""
    grpo = context.grpo
    assert grpo is not None  # noqa: S101 - asked for with a grpo stage only
    _, estimator = make_objective(context.recipe, grpo, context.setup.tasks)
    wrong, evidence = None, {}
    unproved: list[str] = []
    for section in context.recipe.tasks:
        name = name_of(section)
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
