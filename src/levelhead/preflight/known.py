"""Answers of known worth to the prompts of a task, their lengths and scores; episodes are played."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from levelhead.preflight.check import Context
from levelhead.records import Prompt, Score
from levelhead.rollout.draws import derive
from levelhead.tasks.base import Answer, EpisodeLostError, SingleTurnTask, Task

PROMPTS = 16
"""Training prompts of a task whose answers are scored."""
TURNS = 12
"""Turns that an episode of empty answers may take."""
GIBBERISH = "lorem ipsum 12 dolor"
SAME = 1e-9
"""Rewards nearer to each other are equal."""
_KINDS = ("oracle", "other", "cut", "oracle", "empty", "oracle", "other", "gibberish")


@dataclass(frozen=True, slots=True)
class KnownAnswers:
    """Answers of known worth, one per prompt, so that no two of them are answers to the same prompt.

    Attributes:
        task: Scores them, by rules alone.
        answers: With the tokens that a policy would write.
        kinds: ``oracle``, ``other`` (a perfect answer to another prompt), ``cut``, ``empty`` or ``gibberish``.
    """

    task: SingleTurnTask
    answers: list[Answer]
    kinds: list[str]


def known_answers(context: Context, name: str) -> KnownAnswers | None:
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
        own, other, kind = perfect[i], perfect[(i + 1) % len(prompts)], _KINDS[i % len(_KINDS)]
        texts = {"oracle": own, "other": other, "cut": own[: len(own) // 2] if own else None, "empty": ""}
        text = texts.get(kind, GIBBERISH)
        if text is None:
            kind, text = "gibberish", f"{GIBBERISH} {i}"
        answers.append(Answer(prompt, text, collector.completion_ids(prompt, text)))
        kinds.append(kind)
    return KnownAnswers(rules, answers, kinds) if answers else None


def tasks_known(context: Context) -> Iterator[tuple[str, KnownAnswers, list[Score | None]]]:
    """Yield the tasks that score answers by rules, with answers of known worth and their scores."""
    for name in context.scorable:
        if (probes := known_answers(context, name)) is not None:
            yield name, probes, scores_of(context, probes, probes.answers)


def scores_of(context: Context, probes: KnownAnswers, answers: Sequence[Answer]) -> list[Score | None]:
    """Return the scores of some answers, in one call."""
    return list(context.loop.run(probes.task.score_batch(answers)))


def same(a: Score | None, b: Score | None) -> bool:
    """Whether two scores are equal, part by part, up to the last digits."""
    if a is None or b is None:
        return a is b
    if a.parts.keys() != b.parts.keys() or a.valid != b.valid:
        return False
    pairs = [(a.total, b.total), *((a.parts[name], b.parts[name]) for name in a.parts)]
    return all(math.isclose(x, y, rel_tol=SAME, abs_tol=SAME) for x, y in pairs)


def total_of(score: Score | None) -> float:
    """Return a total for a message; NaN where there is no score."""
    return math.nan if score is None else score.total


def answer_lengths(context: Context) -> list[int]:
    """Tokens of the supervised targets, or of the oracles' answers where there is no supervised stage."""
    prompts = [prompt for rows in context.prompts.values() for prompt in rows]
    if context.recipe.sft is not None:
        return [len(pair.completion_ids) for pair in context.demonstrations(prompts)]
    answers = [(prompt, context.setup.tasks[prompt.task].oracle(prompt)) for prompt in prompts]
    return [
        len(context.codec.demonstration(prompt.messages, answer[0], prompt.chat).completion_ids)
        for prompt, answer in answers
        if answer and len(answer) == 1
    ]


def by_construction(context: Context, task: Task, prompts: Sequence[Prompt]) -> dict[str, list[float | None]]:
    """Return the rewards of answers of known worth, by kind, in the order of the prompts; episodes are played."""
    if not isinstance(task, SingleTurnTask):
        return context.loop.run(_episodes(task, prompts))
    oracles = [answer[0] if (answer := task.oracle(prompt)) else None for prompt in prompts]
    kinds: dict[str, Sequence[str | None]] = {
        "oracle": oracles,
        "empty": [""] * len(prompts),
        "gibberish": [GIBBERISH] * len(prompts),
        "other": [*oracles[1:], *oracles[:1]],
    }
    if len(prompts) < 2:
        kinds.pop("other")
    return {kind: _scored(context, task, prompts, texts) for kind, texts in kinds.items() if None not in texts}


def _scored(
    context: Context, task: SingleTurnTask, prompts: Sequence[Prompt], texts: Sequence[str | None]
) -> list[float | None]:
    answers = [
        Answer(prompt, text or "", context.codec.demonstration(prompt.messages, text or "", prompt.chat).completion_ids)
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    return [None if score is None else score.total for score in context.loop.run(task.score_batch(answers))]


async def _episodes(task: Task, prompts: Sequence[Prompt]) -> dict[str, list[float | None]]:
    """Play each prompt's perfect episode once more, one of empty answers and one of nonsense."""
    scores: dict[str, list[float | None]] = {"oracle": [], "empty": [], "gibberish": []}
    for prompt in prompts:
        answers = await perfect_answers(task, prompt)
        scores["oracle"].append(await play(task, prompt, answers) if answers else None)
        scores["empty"].append(await play(task, prompt, [""] * TURNS))
        scores["gibberish"].append(await play(task, prompt, [GIBBERISH] * TURNS))
    if any(score is not None for score in scores["oracle"]):
        return scores
    return {kind: values for kind, values in scores.items() if kind != "oracle"}


async def perfect_answers(task: Task, prompt: Prompt) -> list[str]:
    """Return the answers of a prompt's perfect episode, of tools the last one; none where nobody knows them."""
    if task.demonstrates and task.tools is None:
        return [str(answer) for _, answer in await task.demonstrate(prompt)]
    return list(task.oracle(prompt) or ())


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
