"""Rewards: finite, attached to the right answer, the oracle on top, an empty answer below, and contrast in groups."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from statistics import fmean, pstdev
from typing import Any

from levelhead.errors import RewardError
from levelhead.preflight.chance import LEVEL, sign_p
from levelhead.preflight.context import PreflightContext
from levelhead.preflight.result import Check, judged
from levelhead.records import Group, Prompt
from levelhead.rollout.draws import derive
from levelhead.tasks.base import Answer, EpisodeLostError, SingleTurnTask, Task

PROBED = 4
"""Prompts of a task whose answers are scored."""
DOUBTED = 96
"""Prompts whose answers are scored where those of the first few are not in order: scores may be noisy."""
REPLAYED = 20
"""The same of episodes, which take longer."""
TURNS = 12
"""Turns that an episode of empty answers may take."""
_MEND = "mend the reward function"
GIBBERISH = "lorem ipsum 12 dolor"
FEWEST_COMPARED = 8
"""Perfect answers whose score must depend on the prompt before anything is said of it."""
AT_HOME = 0.7
"""Share of them that must score more under their own prompt; half do by chance, all where the oracle is perfect."""


def check_rewards(context: PreflightContext) -> Iterator[Check]:
    """Score known answers, and look at the rewards of sampled groups."""
    if context.drawn.error is not None:
        fix = context.drawn.error.fix or (
            "mend the function (the message names it and the row), or set tasks[].on_reward_error: drop"
        )
        yield Check("rewards/finite", "fail", str(context.drawn.error).splitlines()[0], {}, fix)
    for name, task in context.setup.tasks.items():
        prompts = context.prompts[name][:PROBED]
        try:
            yield from _of_task(context, task, prompts)
        except RewardError as error:
            yield Check(f"rewards/finite/{name}", "fail", str(error).splitlines()[0], {}, error.fix or _MEND)
    if context.drawn.error is None:
        yield from _dropped(context)
        yield from _contrast(context)


def _dropped(context: PreflightContext) -> Iterator[Check]:
    """How many of the sampled answers the rewards fail on, where the recipe drops these."""
    for task, tally in context.drawn.cost.tallies.items():
        if not tally.drops:
            continue
        message = f"rewards failed on {tally.dropped} of {tally.answers} sampled answers"
        evidence = {"answers": tally.answers, "dropped": tally.dropped, "by": dict(tally.by)}
        if 2 * tally.dropped <= tally.answers:
            yield Check(f"rewards/dropped/{task}", "pass", message, evidence)
            continue
        # A policy that has yet to be taught the form of an answer may fail on all of them.
        hopeless = tally.dropped == tally.answers and context.recipe.sft is None
        fix = "mend the reward function; tasks[].on_reward_error: stop names the row and the answer"
        message = f"{message}; the last one: {tally.error}"
        yield Check(f"rewards/dropped/{task}", "fail" if hopeless else "warn", message, evidence, fix)


def _of_task(context: PreflightContext, task: Task, prompts: Sequence[Prompt]) -> Iterator[Check]:
    scores = _by_construction(context, task, prompts)
    check = _order(task, scores, 1.0)
    better, compared = _own_prompts(scores)
    if check.status != "pass" or better < compared:  # few scores may be out of order by chance
        most = DOUBTED if isinstance(task, SingleTurnTask) else REPLAYED
        more = list(itertools.islice(task.prompts("train", derive(context.seed, "order", task.name)), most))
        if len(more) > len(prompts):
            check = _order(task, _by_construction(context, task, more), LEVEL / len(context.setup.tasks))
    yield check
    if isinstance(task, SingleTurnTask):
        yield _attached(context, task)


def _by_construction(context: PreflightContext, task: Task, prompts: Sequence[Prompt]) -> dict[str, list[float | None]]:
    """Return the rewards of answers of known worth, by kind, in the order of the prompts."""
    if not isinstance(task, SingleTurnTask):
        return context.loop.run(_episodes(task, prompts))
    oracles = [answer[0] if (answer := task.oracle(prompt)) else None for prompt in prompts]
    others = [*oracles[1:], *oracles[:1]]
    kinds: dict[str, Sequence[str | None]] = {
        "oracle": oracles,
        "empty": [""] * len(prompts),
        "gibberish": [GIBBERISH] * len(prompts),
        "other": others,
    }
    if len(prompts) < 2:
        kinds.pop("other")
    return {kind: _score(context, task, prompts, answers) for kind, answers in kinds.items() if None not in answers}


def _score(
    context: PreflightContext, task: SingleTurnTask, prompts: Sequence[Prompt], answers: Sequence[Any]
) -> list[float | None]:
    codec = context.codec
    made = [
        Answer(prompt, text, codec.demonstration(prompt.messages, text).completion_ids)
        for prompt, text in zip(prompts, answers, strict=True)
    ]
    return [None if score is None else score.total for score in context.loop.run(task.score_batch(made))]


async def _episodes(task: Task, prompts: Sequence[Prompt]) -> dict[str, list[float | None]]:
    """Play each prompt's perfect episode once more, one of empty answers and one of nonsense."""
    scores: dict[str, list[float | None]] = {"oracle": [], "empty": [], "gibberish": []}
    for prompt in prompts:
        if task.demonstrates:
            answers = [answer for _, answer in await task.demonstrate(prompt)]
        else:
            answers = task.oracle(prompt) or []
        scores["oracle"].append(await play(task, prompt, answers) if answers else None)
        scores["empty"].append(await play(task, prompt, [""] * TURNS))
        scores["gibberish"].append(await play(task, prompt, [GIBBERISH] * TURNS))
    if any(score is not None for score in scores["oracle"]):
        return scores
    return {kind: values for kind, values in scores.items() if kind != "oracle"}


async def play(task: Task, prompt: Prompt, answers: Sequence[str]) -> float | None:
    """Return the reward of an episode of given answers; ``None`` where they did not end it, or it was lost."""
    episode = task.episode(prompt)
    try:
        for answer in answers:
            await episode.observe()
            step = await episode.act(answer)
            if step.done:
                return None if step.score is None else step.score.total
    except EpisodeLostError:
        return None
    finally:
        await episode.close()
    return None


def _own_prompts(scores: dict[str, list[float | None]]) -> tuple[int, int]:
    """Return how many perfect answers score more under their own prompt than under another's, and how many differ.

    The same answer is compared with itself, so that a reward of its style alone says nothing here.
    """
    own, elsewhere = scores.get("oracle", []), scores.get("other", [])
    pairs = [(a, b) for a, b in zip([*own[1:], *own[:1]], elsewhere, strict=False) if a is not None and b is not None]
    gaps = [a - b for a, b in pairs if abs(a - b) > 1e-9]
    return sum(gap > 0 for gap in gaps), len(gaps)


def _more_often(scores: dict[str, list[float | None]], kind: str, other: str, level: float) -> bool:
    """Whether answers of one kind score more than those of another, on average and too often for chance."""
    pairs = [(a, b) for a, b in zip(scores[kind], scores[other], strict=True) if a is not None and b is not None]
    gaps = [a - b for a, b in pairs]
    if not gaps or fmean(gaps) <= 1e-9:
        return False
    return sign_p(sum(gap > 1e-9 for gap in gaps), sum(gap < -1e-9 for gap in gaps)) <= level


def _order(task: Task, scores: dict[str, list[float | None]], level: float) -> Check:
    """The oracle scores more than an empty answer, and nothing scores more than the oracle beyond chance."""
    name = f"rewards/order/{task.name}"
    rewards_by_kind = {kind: [s for s in values if s is not None] for kind, values in scores.items()}
    means = {kind: fmean(values) for kind, values in rewards_by_kind.items() if values}
    dropped = {kind: len(values) - len(rewards_by_kind[kind]) for kind, values in scores.items()}
    evidence = {"mean_reward": means, "not_scored": dropped, "answers_of_a_kind": len(scores["empty"])}
    fix = "score a perfect answer, an empty one and nonsense by hand and mend the reward until they differ"
    listed = ", ".join(f"{kind} {mean:.3g}" for kind, mean in means.items())
    every = [s for values in rewards_by_kind.values() for s in values]
    if not every:
        return Check(name, "fail", "the reward scores none of the known answers", evidence, fix)
    if "oracle" not in means:
        flat = len(every) > 2 and pstdev(every) == 0
        # A reward for exact answers gives nothing to either: only an oracle could tell that from a reward of nothing.
        note = "; name an oracle column (tasks[].oracle) to see that right answers get more" if flat else ""
        return Check(name, "pass", f"no oracle to compare with; {listed}{note}", evidence)
    if means["oracle"] <= means.get("empty", float("-inf")):
        wrong = (
            f"a perfect answer scores {means['oracle']:.3g} and an empty one {means['empty']:.3g}: nothing is rewarded"
        )
        return Check(name, "fail", wrong, evidence, fix)
    if means["oracle"] <= means.get("gibberish", float("-inf")):
        wrong = f"a perfect answer scores {means['oracle']:.3g} and nonsense {means['gibberish']:.3g}"
        return Check(name, "fail", wrong, evidence, fix)
    guesses = isinstance(task, SingleTurnTask) and task.guesses
    better, compared = (0, 0) if guesses else _own_prompts(scores)
    if compared >= FEWEST_COMPARED and better <= AT_HOME * compared:
        wrong = (
            f"of {compared} perfect answers whose score depends on the prompt, {better} score more under their own "
            f"than under another's: answers and columns are out of step ({listed})"
        )
        fix = "look whether row i's answer is judged by row i's columns, and whether the oracle is that row's"
        return Check(name, "warn", wrong, evidence | {"better": better, "compared": compared}, fix)
    rivals = [kind for kind in means if kind != "oracle" and not (guesses and kind == "other")]
    above = [kind for kind in rivals if _more_often(scores, kind, "oracle", level)]
    if above:
        wrong = f"something scores more than the oracle on average: {listed}"
        return Check(name, "warn", wrong, evidence, "look whether the oracle is perfect by this reward")
    below = [kind for kind in means if "empty" in means and _more_often(scores, "empty", kind, level)]
    if below:
        note = f"the oracle is on top, but an empty answer beats {', '.join(below)}: {listed}"
        return Check(name, "warn", note, evidence, "saying nothing should never pay; give it the least reward")
    if "empty" not in means:
        return Check(name, "pass", f"the oracle is on top, and an empty answer is dropped: {listed}", evidence)
    return Check(name, "pass", f"the oracle is on top and an empty answer at the bottom: {listed}", evidence)


def _attached(context: PreflightContext, task: SingleTurnTask) -> Check:
    """The score that a rollout carries is the score of its own text."""
    pairs = [(g.prompt, r) for g in context.drawn.groups if g.prompt.task == task.name for r in g.rollouts if r.score]
    name = f"rewards/attached/{task.name}"
    if not pairs:
        return Check(name, "pass", "no scored rollouts to compare")

    def again(order: Sequence[int]) -> dict[int, float | None]:
        answers = [Answer(pairs[i][0], pairs[i][1].text[0], pairs[i][1].turns[0].completion_ids) for i in order]
        scores = context.loop.run(task.score_batch(answers))
        return {i: None if score is None else score.total for i, score in zip(order, scores, strict=True)}

    forward, backward = again(range(len(pairs))), again(range(len(pairs) - 1, -1, -1))
    carried = {i: rollout.reward for i, (_, rollout) in enumerate(pairs)}
    off = [i for i in carried if carried[i] != forward[i]]
    moved = [i for i in carried if forward[i] != backward[i]]
    texts = [rollout.text[0] for _, rollout in pairs]
    foreign = [i for i, (_, r) in enumerate(pairs) if context.codec.decode(r.turns[0].completion_ids) != r.text[0]]
    evidence = {
        "rollouts": len(pairs),
        "changed": len(off),
        "changed_by_order": len(moved),
        "distinct": len(set(texts)),
    }
    if foreign:
        shown = texts[foreign[0]][:60]
        wrong = f"{len(foreign)} of {len(pairs)} rollouts are judged by a text that is not theirs: {shown!r}"
        return Check(name, "fail", wrong, evidence, "decode the completion's own ids, and only these")
    if off and not moved:
        at = off[0]
        wrong = (
            f"{len(off)} of {len(pairs)} rollouts carry a score that is not their answer's ({carried[at]:.3g} carried, "
            f"{forward[at]} when scored alone): rewards and completions are out of step"
        )
        return Check(name, "fail", wrong, evidence, "return one reward a completion, in the order of the completions")
    if moved:
        note = f"{len(moved)} of {len(pairs)} answers score differently when scored again in another order"
        return Check(name, "warn", note, evidence, "fine for a reward that samples or compares answers; else mend it")
    return Check(name, "pass", f"{len(pairs)} rollouts carry the scores of their own answers", evidence)


def _contrast(context: PreflightContext) -> Iterator[Check]:
    """How many groups teach something, at this K and success rate."""
    grpo = context.grpo
    if grpo is None:
        return
    yield _group_size(grpo.group_size, divides=grpo.advantage.make().divides_by_std)
    for task in context.setup.tasks:
        groups = [g for g in context.drawn.groups if g.prompt.task == task and len(g.rollouts) > 1]
        name = f"rewards/contrast/{task}"
        if not groups:
            yield Check(name, "warn", "no group of two scored rollouts was drawn", {}, "see rewards/finite")
            continue
        yield _task_contrast(context, name, groups, grpo.group_size)


def _task_contrast(context: PreflightContext, name: str, groups: Sequence[Group], k: int) -> Check:
    rewards = [reward for group in groups for reward in group.rewards]
    dead = fmean(max(g.rewards) == min(g.rewards) for g in groups)
    counts = _reward_counts(groups)
    expected = {str(size): expected_dead(counts, size) for size in (k, 2 * k, 4 * k)}
    evidence = {
        "groups": len(groups),
        "reward": fmean(rewards),
        "reward_std": fmean(pstdev(g.rewards) for g in groups),
        "dead_now": dead,
        "expected_dead_by_k": expected,
    }
    now = f"{dead:.0%} of {len(groups)} groups have no contrast (mean reward {fmean(rewards):.3g})"
    if context.recipe.sft is not None:
        return Check(name, "pass", f"before sft {now}; judged by the run's first GRPO steps instead", evidence)
    if dead == 1:
        fix = "teach the format with an sft section, start from a better model, or give partial credit"
        return Check(name, "warn", f"{now}: nothing would be learnt from these", evidence, fix)
    if expected[str(k)] > 0.5:
        wrong = (
            f"{now}; about {expected[str(k)]:.0%} are expected at K = {k}, {expected[str(2 * k)]:.0%} at K = {2 * k}"
        )
        return Check(
            name, "warn", wrong, evidence, f"raise grpo.group_size to {2 * k}, or mix in tasks solved half the time"
        )
    return Check(name, "pass", f"{now}; about {expected[str(k)]:.0%} are expected at K = {k}", evidence)


def expected_dead(counts: Sequence[Sequence[int]], k: int) -> float:
    """Return the expected share of groups without contrast among groups of ``k`` rollouts.

    A prompt whose n rollouts got reward v n_v times, of m rewards that its task gives, has under Jeffreys' prior the
    chances Dirichlet(n_v + 1/2); its group has no contrast with probability sum_v E[p_v^K].  The marginals are
    Beta(n_v + 1/2, n - n_v + (m - 1) / 2), so each term is a ratio of Beta functions.

    Args:
        counts: For each prompt, how often it got each reward of the task, zeros included.
        k: Group size to predict for.
    """

    def power(a: float, b: float) -> float:
        value = 1.0
        for i in range(k):
            value *= (a + i) / (a + b + i)
        return value

    return fmean(sum(power(times + 0.5, sum(row) - times + 0.5 * (len(row) - 1)) for times in row) for row in counts)


def _reward_counts(groups: Sequence[Group]) -> list[list[int]]:
    """Return how often each group got each reward of them all; two rewards at least, as most tasks have."""
    levels = sorted({reward for group in groups for reward in group.rewards})
    missing = [0] * max(0, 2 - len(levels))
    return [[list(group.rewards).count(level) for level in levels] + missing for group in groups]


def _group_size(k: int, *, divides: bool) -> Check:
    evidence = {"group_size": k}
    wrong = None
    if k == 2 and divides:
        wrong = (
            "K = 2: after division by the group's deviation the two advantages are always plus and minus the same "
            "number, however close the rewards; how much better one was is lost"
        )
    elif k < 4:
        wrong = (
            f"K = {k}: the group's mean and deviation are estimated from {k} rollouts, and many groups have no contrast"
        )
    fix = "set grpo.group_size to 8 or more, or advantage.kind to rloo, which does not divide"
    return judged("rewards/group-size", wrong, f"K = {k}", evidence, fix, severity="warn")
