"""Tasks of questions with known answers: what they share, and the ``code`` and ``qa`` tasks of public data sets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar

from levelhead.metrics import held_out
from levelhead.recipe.tasks import Code, Math, Questions
from levelhead.records import Prompt, Rollout, Score
from levelhead.tasks.base import Answer, SingleTurnTask, Split
from levelhead.tasks.datasets.base import Example
from levelhead.tasks.datasets.load import dataset_named, load
from levelhead.tasks.splits import in_seed_order, limit_sides, split_by_group


class ExampleTask(SingleTurnTask):
    """One prompt an example: its question, and below it how the data set's answers are given.  Scores lie in [0, 1].

    Args:
        section: The recipe's section.
        examples: Of both sides.
        group: From a question to what it shares with its variants, which stay on one side.
    """

    part_means: ClassVar[Mapping[str, str]] = {}
    """Part of a score whose mean is a metric, by the metric's name."""

    def __init__(
        self, section: Code | Questions | Math, examples: Sequence[Example], group: Callable[[str], str]
    ) -> None:
        self.name = section.title
        self._dataset = dataset_named(section.dataset)
        sides = split_by_group(
            examples, lambda example: " ".join(group(example.question).split()), section.eval_fraction
        )
        self._sides = limit_sides(sides, section.limit, section.eval_fraction, lambda example: example.id)
        self._examples = {example.id: example for side in self._sides.values() for example in side}

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        """Yield the split's questions once, in an order that depends on the seed alone."""
        for example in in_seed_order(self._sides[split], seed, self.name, split):
            message = {"role": "user", "content": f"{example.question}\n{self._dataset.instruction}"}
            yield Prompt(example.id, self.name, (message,), facts=self._facts(example))

    def strata(self, prompt: Prompt) -> Mapping[str, str]:
        """Return what the data tell questions apart by: MATH's subject, HotpotQA's type; nothing for most."""
        return dict(self._examples[prompt.id].strata)

    @property
    def reward_range(self) -> tuple[float, float]:
        """Return 0, of an answer that says nothing, and 1."""
        return 0.0, 1.0

    def oracle(self, prompt: Prompt) -> list[str] | None:
        """Return the data's solution, or ``None`` where they hold none."""
        solution = self._examples[prompt.id].solution
        return [solution] if solution else None

    async def score_batch(self, answers: Sequence[Answer]) -> list[Score | None]:
        """Score many answers, in a thread: programs, and the process that compares mathematics, take their time."""
        return await asyncio.to_thread(lambda: [self.score(answer.prompt, answer.text) for answer in answers])

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        """Return ``accuracy``, the share of right answers, and the mean of the other part."""
        scores = [rollout.score for _, rollout in results if rollout.score is not None]
        if not scores:
            return {}
        means = {metric: fmean(score.parts[part] for score in scores) for metric, part in self.part_means.items()}
        return {**super().summarize(results), **means}

    def _facts(self, example: Example) -> dict[str, Any]:
        return {"answers": example.answers}


class DatasetTask(ExampleTask):
    """Questions of a public data set.

    A score lies in [0, 1]: the share of tests that hold, or token F1 (part ``partial``), or, with ``credit: exact``,
    whether the answer is right as the data set's official metric counts it (part ``correct``).

    Args:
        section: The recipe's section.

    Raises:
        InputError: A file is missing or empty, or a row is malformed; the message names file and line.
    """

    part_means: ClassVar = {held_out.ACCURACY: "correct", held_out.MEAN_PART.of("partial"): "partial"}

    def __init__(self, section: Code | Questions) -> None:
        super().__init__(section, load(section.dataset, section.path), str)
        self._limits = section.sandbox if isinstance(section, Code) else None
        self._exact = section.credit == "exact"

    @property
    def part_weights(self) -> Mapping[str, float]:
        """Return which part is the reward."""
        return {"correct": float(self._exact), "partial": float(not self._exact)}

    def score(self, prompt: Prompt, text: str) -> Score:
        """Score one answer; a program runs in the sandbox."""
        verdict = self._dataset.check(self._examples[prompt.id], text, self._limits)
        parts = {"correct": float(verdict.right), "partial": 1.0 if verdict.right else verdict.score}
        info = {key: value for key, value in (("answer", verdict.stated), ("note", verdict.note)) if value}
        total = parts["correct" if self._exact else "partial"]
        return Score(total, parts, valid=verdict.stated is not None, info=info)
