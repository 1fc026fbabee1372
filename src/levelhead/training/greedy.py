"""The likeliest answers of a policy to a task's prompts, written to a file: what later answers are compared with."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from levelhead.errors import InputError
from levelhead.recipe.recipe import Recipe
from levelhead.records import Prompt
from levelhead.rollout.draws import derive
from levelhead.rollout.generators.make import make_generator
from levelhead.tasks.base import SingleTurnTask
from levelhead.tasks.judges.questions import text_of
from levelhead.training.collect import Collector
from levelhead.training.loop import EventLoop
from levelhead.training.prepare import prepare


def write_greedy_answers(recipe: Recipe, checkpoint: Path | None, out: Path, items: int | None = None) -> int:
    """Write the policy's greedy answer to each prompt as JSON lines with ``prompt`` and ``answer``; returns how many.

    Judges are not asked, and what they need (a file of reference answers) need not be there yet.

    Args:
        recipe: Names model and tasks.
        checkpoint: Folder of the policy; the model as the recipe names it unless given.
        out: File to write, whole or not at all.
        items: Training prompts a task, in the order of the run's first pass; all unless given.  Beside them stand the
            prompts of evaluations.

    Raises:
        InputError: A task has no single answers, or the file cannot be written.
    """
    alone = [section.model_copy(update={"judge": None, "judges": None}) for section in recipe.tasks]
    recipe = recipe.model_copy(update={"tasks": alone})
    setup = prepare(recipe, checkpoint=checkpoint)
    for task in setup.tasks.values():
        if not isinstance(task, SingleTurnTask):
            raise InputError(f"{task.name} is no task of single answers: there is nothing to compare its episodes with")
    loop = EventLoop()
    generator = make_generator(setup.policy, loop.waiter, recipe.generator)
    collector = Collector(setup.tasks, setup.policy.codec, generator, loop)
    greedy = recipe.eval.sampling.model_copy(update={"temperature": 0.0})
    answers: dict[str, str] = {}
    try:
        for task in setup.tasks.values():
            assert isinstance(task, SingleTurnTask)  # noqa: S101 - looked at above
            for prompts in _batches(_prompts(task, recipe, items), recipe.eval.batch_size):
                drawn = collector.run(prompts, 1, greedy, derive(recipe.seed, "greedy", task.name))
                for group in drawn.groups:
                    answers |= {text_of(group.prompt): rollout.text[-1] for rollout in group.rollouts}
    finally:
        loop.run(generator.close())
        loop.close()
    draft = out.with_name(out.name + ".new")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps({"prompt": prompt, "answer": answer}) + "\n" for prompt, answer in answers.items())
        draft.write_text("".join(lines), encoding="utf-8")
        draft.replace(out)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error})") from error
    return len(answers)


def _prompts(task: SingleTurnTask, recipe: Recipe, items: int | None) -> Iterator[Prompt]:
    order = derive(derive(recipe.seed, "stream", "grpo"), "order", task.name, 0)
    yield from itertools.islice(task.prompts("train", order), items)
    held_out = max(recipe.eval.items, recipe.eval.final_items)
    yield from itertools.islice(task.prompts("eval", derive(recipe.seed, "eval", task.name)), held_out)


def _batches(prompts: Iterator[Prompt], size: int) -> Iterator[Sequence[Prompt]]:
    while batch := list(itertools.islice(prompts, size)):
        yield batch
