"""The best constant answer beside a perfect one, an empty one, and the policy that GRPO would start from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from levelhead.diagnosis.verdict import short
from levelhead.errors import RewardError
from levelhead.preflight.context import PreflightContext
from levelhead.preflight.result import Check
from levelhead.records import Prompt
from levelhead.rollout.draws import derive
from levelhead.tasks.base import Answer, SingleTurnTask, Task
from levelhead.tasks.constant import Constant, ConstantSearch, Estimate, leaves_much
from levelhead.training.evaluate import balanced_mean, main_stratum
from levelhead.training.evaluator import ways_out

ITEMS = 96
"""Training prompts of a task that constant answers are scored on."""
PULL = 0.25
"""Share of the way from an empty answer to a perfect one by which a constant answer must beat blind ones."""
PAYS = 0.4
"""Share of that way that a constant answer must come to be worth settling on."""
GIVEN_UP = 0.4
"""Share of that way below which a constant answer has given a stratum up."""
FEWEST = 8
"""Perfect answers beside which a constant one is judged, at least."""
MORE = 24
"""Training prompts of a task that the policy answers besides those of all checks, where it seems to read."""
SURE = 3.0
"""Standard errors by which a constant answer must score more than perfect ones for the reward to be doubted."""

_UNLESS = ": GRPO will find it unless SFT teaches reading"


def check_constant(context: PreflightContext) -> Iterator[Check]:
    """Look whether GRPO would find an answer that needs no reading before it finds reading."""
    if context.grpo is None or not context.recipe.eval.constant:
        return
    for name, task in context.setup.tasks.items():
        # Browsers and servers are played by evaluations alone: here they would take minutes.
        if isinstance(task, SingleTurnTask) and task.rules is not None:
            try:
                yield _of_task(context, name, task)
            except RewardError as error:
                yield Check(f"rewards/constant/{name}", "warn", str(error).splitlines()[0], {}, "mend the reward")


def _of_task(context: PreflightContext, name: str, task: SingleTurnTask) -> Check:
    search = ConstantSearch(task, context.collector().completion_ids, derive(context.seed, "candidates", name))
    drawn = [group for group in context.drawn.groups if group.prompt.task == name and group.rollouts]
    if context.drawn.error is not None:
        drawn = []
    there = {group.prompt.id for group in drawn}
    prompts = [group.prompt for group in drawn]
    wanted = itertools.islice(task.prompts("train", derive(context.seed, "constant", name)), ITEMS)
    prompts += [prompt for prompt in wanted if prompt.id not in there]
    constant = context.loop.run(search.best(prompts))
    label = f"rewards/constant/{name}"
    if constant is None:
        return Check(label, "pass", "no constant answer to compare with")
    perfect, empty = context.loop.run(search.bounds(prompts))
    blind = context.loop.run(search.blind(prompts))
    score = Estimate.of(constant.scores)
    mine, reads = _policy(context, task, prompts, [fmean(group.rewards) for group in drawn], blind)
    gaps = [own - its for own, its in zip(mine, constant.scores, strict=False)]
    over = Estimate.of(gaps) if len(gaps) > 1 else None
    evidence: dict[str, Any] = {
        "answer": constant.answer,
        "constant": score.to_json(),
        "perfect": perfect,
        "empty": empty,
        "blind": None if blind is None else blind.to_json(),
        "policy_over_constant": None if over is None else over.to_json(),
        "policy_is_known": reads,
        "items": len(prompts),
    }
    summary = f"a policy that always answers {short(constant.answer)} scores {score.score:+.2f}"
    bounds = ", ".join(
        f"{k} {v:+.2f}" for k, v in (("a perfect one", perfect), ("an empty answer", empty)) if v is not None
    )
    passed = Check(label, "pass", f"{summary}; {bounds}" if bounds else summary, evidence)
    more = _over_perfect(constant, context.loop.run(search.perfect(prompts)))
    if more is not None and not task.guesses and more.score > max(SURE * more.se, 1e-9):
        wrong = f"{summary}, {more.score:.2g} more than perfect ones ({bounds}): being right is not what is paid"
        fix = "look what the reward pays besides right answers (length, phrases, form), and whether the oracle is right"
        return Check(label, "warn", wrong, evidence | {"over_perfect": more.to_json()}, fix)
    if not leaves_much(_balanced(task, prompts, constant), perfect, empty):
        return passed
    if reads:
        if over is None or over.score + 2 * over.se >= 0:
            return passed
        message = f"{summary}, yours {fmean(mine):+.2f}: GRPO will find it"
        return Check(label, "warn", message, evidence, ways_out(context.recipe, name))
    why = _trap(task, prompts, constant, perfect, empty, blind)
    if not why:
        return passed
    return Check(label, "warn", f"{summary}, {why}; {bounds}", evidence, ways_out(context.recipe, name))


def _over_perfect(constant: Constant, perfect: Sequence[float | None]) -> Estimate | None:
    """By how much a constant answer scores more than perfect ones to the same prompts; ``None`` where few are known."""
    gaps = [its - own for its, own in zip(constant.scores, perfect, strict=True) if own is not None]
    return Estimate.of(gaps) if len(gaps) >= FEWEST else None


def _policy(
    context: PreflightContext,
    task: SingleTurnTask,
    prompts: Sequence[Prompt],
    mine: list[float],
    blind: Estimate | None,
) -> tuple[list[float], bool]:
    """Say what the policy scores on the first prompts, and whether it stands for the one that GRPO starts from.

    Without supervised steps it is that one.  With them it stands for it where it reads already (:func:`is_read`), as a
    pretrained one may: they make it no worse.  Only one that does better than blind answers is asked.

    Args:
        context: Draws.
        task: Scores.
        prompts: The sampled ones first.
        mine: Scores on these.
        blind: What perfect answers to other prompts score.
    """
    if context.recipe.sft is None:
        return mine, True
    if blind is None or not mine or fmean(mine) <= blind.score:
        return mine, False
    more, dealt = _answered(context, task, prompts[len(mine) : len(mine) + MORE])
    return mine + more, is_read(more, dealt)


def _answered(
    context: PreflightContext, task: SingleTurnTask, prompts: Sequence[Prompt]
) -> tuple[list[float], list[float]]:
    """Let the policy answer some prompts once; return what its answers score, and what they score on the next prompt.

    A judge is not asked.  Nothing where an answer cannot be scored.
    """
    rules = task.rules
    if rules is None or len(prompts) < 2:
        return [], []
    ready = [context.collector().render(prompt) for prompt in prompts]
    drawn = context.generator.sample(ready, 1, context.controls, derive(context.seed, "constant", "own", task.name))
    ids = [turns[0].completion_ids for turns in drawn]
    texts = [context.codec.decode(tokens) for tokens in ids]
    own = [Answer(*row) for row in zip(prompts, texts, ids, strict=True)]
    next_one = [Answer(*row) for row in zip([*prompts[1:], prompts[0]], texts, ids, strict=True)]
    scores = context.loop.run(rules.score_batch(own)), context.loop.run(rules.score_batch(next_one))
    mine, dealt = ([score.total for score in side if score is not None] for side in scores)
    return (mine, dealt) if len(mine) == len(dealt) == len(prompts) else ([], [])


def is_read(own: Sequence[float], dealt: Sequence[float]) -> bool:
    """Whether answers depend on their prompts: on these they score more than on others, by two standard errors.

    Args:
        own: Score of each answer on its own prompt.
        dealt: On another prompt.
    """
    gain = [mine - other for mine, other in zip(own, dealt, strict=True)]
    return len(gain) > 1 and Estimate.of(gain).score > 2 * Estimate.of(gain).se


def _trap(
    task: Task,
    prompts: Sequence[Prompt],
    constant: Constant,
    perfect: float | None,
    empty: float | None,
    blind: Estimate | None,
) -> str:
    """Say why a policy of after SFT, which does not exist yet, would settle on a constant answer; nothing if not.

    Supervised steps teach the form first and reading later.  A policy that has learnt the form alone writes answers
    that belong to other prompts; perfect answers dealt to the wrong prompts score what it would (``blind``).  The
    answer is a trap where it beats these by a quarter of the way from an empty answer to a perfect one, or where it
    earns two fifths of that way and yet gives a whole stratum up: then it lives on a base rate.
    """
    if perfect is None or empty is None or perfect <= empty:
        return ""
    width, score = perfect - empty, Estimate.of(constant.scores)
    if blind is not None:
        pull, error = score.score - blind.score, (score.se**2 + blind.se**2) ** 0.5
        if pull > PULL * width and pull > 2 * error:
            return f"and one that has the form but does not read {blind.score:+.2f}{_UNLESS}"
    if (score.score - empty) / width < PAYS:
        return ""
    for name, scores in _by_stratum(task, prompts, constant).items():
        if (Estimate.of(scores).score - empty) / width < GIVEN_UP:
            return f"though only {Estimate.of(scores).score:+.2f} where {name}{_UNLESS}"
    return ""


def _balanced(task: Task, prompts: Sequence[Prompt], constant: Constant) -> float:
    """Mean over all items or over strata alike, whichever is less: an easy stratum may be most of the items."""
    main = [main_stratum(task, prompt) for prompt in prompts]
    return min(balanced_mean(constant.scores, main).score, Estimate.of(constant.scores).score)


def _by_stratum(task: Task, prompts: Sequence[Prompt], constant: Constant) -> Mapping[str, list[float]]:
    scores_by_stratum: dict[str, list[float]] = {}
    for prompt, score in zip(prompts, constant.scores, strict=True):
        for key, value in task.strata(prompt).items():
            scores_by_stratum.setdefault(f"{key} is {value}", []).append(score)
    return {name: scores for name, scores in scores_by_stratum.items() if len(scores) > 1}
