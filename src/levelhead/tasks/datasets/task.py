"""The ``code`` and ``qa`` tasks: questions of a public data set, answered directly and checked by its own metric."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from levelhead.metrics import held_out
from levelhead.recipe.tasks import Code, Questions
from levelhead.records import Prompt, Rollout, Score
from levelhead.tasks.base import Answer, SingleTurnTask, Split
from levelhead.tasks.datasets.load import dataset_named, load
from levelhead.tasks.splits import in_seed_order, limit_sides, split_by_group


class DatasetTask(SingleTurnTask):
    """Questions of a public data set.

    A score lies in [0, 1]: the share of tests that hold, or token F1 (part ``partial``), or, with ``credit: exact``,
    whether the answer is right as the data set's official metric counts it (part ``correct``).

    Args:
        section: The recipe's section.

    Raises:
        InputError: A file is missing or empty, or a row is malformed; the message names file and line.
    """

    def __init__(self, section: Code | Questions) -> None:
        self.name = section.name or section.kind
        self._dataset = dataset_named(section.dataset)
        self._limits = section.sandbox if isinstance(section, Code) else None
        self._exact = section.credit == "exact"
        examples = load(section.dataset, section.path)
        sides = split_by_group(examples, lambda example: " ".join(example.question.split()), section.eval_fraction)
        self._sides = limit_sides(sides, section.limit, section.eval_fraction, lambda example: example.id)
        self._examples = {example.id: example for side in self._sides.values() for example in side}

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        """Yield the split's questions once, in an order that depends on the seed alone."""
        for example in in_seed_order(self._sides[split], seed, self.name, split):
            message = {"role": "user", "content": f"{example.question}\n{self._dataset.instruction}"}
            yield Prompt(example.id, self.name, (message,), facts={"answers": example.answers})

    def strata(self, prompt: Prompt) -> Mapping[str, str]:
        """Return what the data tell questions apart by."""
        return dict(self._examples[prompt.id].strata)

    @property
    def reward_range(self) -> tuple[float, float]:
        """Return 0, of an answer that says nothing, and 1."""
        return 0.0, 1.0

    @property
    def part_weights(self) -> Mapping[str, float]:
        """Return which part is the reward."""
        return {"correct": float(self._exact), "partial": float(not self._exact)}

    def oracle(self, prompt: Prompt) -> list[str] | None:
        """Return the data's solution, or ``None`` where they hold none."""
        solution = self._examples[prompt.id].solution
        return [solution] if solution else None

    def score(self, prompt: Prompt, text: str) -> Score:
        """Score one answer; a program runs in the sandbox."""
        verdict = self._dataset.check(self._examples[prompt.id], text, self._limits)
        parts = {"correct": float(verdict.right), "partial": 1.0 if verdict.right else verdict.score}
        info = {key: value for key, value in (("answer", verdict.stated), ("note", verdict.note)) if value}
        total = parts["correct" if self._exact else "partial"]
        return Score(total, parts, valid=verdict.stated is not None, info=info)

    async def score_batch(self, answers: Sequence[Answer]) -> list[Score | None]:
        """Score many answers, in a thread: programs take their time."""
        return await asyncio.to_thread(lambda: [self.score(answer.prompt, answer.text) for answer in answers])

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        """Return ``accuracy``, the share of right answers, and the mean of each part."""
        scores = [rollout.score for _, rollout in results if rollout.score is not None]
        if not scores:
            return {}
        accuracy = fmean(score.parts["correct"] for score in scores)
        partial = fmean(score.parts["partial"] for score in scores)
        return {
            **super().summarize(results),
            held_out.ACCURACY: accuracy,
            held_out.MEAN_PART.of("partial"): partial,
        }
