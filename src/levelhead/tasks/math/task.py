"""The ``math`` task: a problem in, its reasoning and one exact answer out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from levelhead.metrics import held_out
from levelhead.recipe.tasks import Math
from levelhead.records import Prompt, Rollout, Score
from levelhead.tasks.base import Answer, SingleTurnTask, Split
from levelhead.tasks.datasets.base import Example
from levelhead.tasks.datasets.checkers.equality import check_math
from levelhead.tasks.datasets.checkers.stated import boxed, ends_in_box
from levelhead.tasks.datasets.load import load
from levelhead.tasks.datasets.math_competition import INSTRUCTION as BOX_INSTRUCTION
from levelhead.tasks.math.items import generate
from levelhead.tasks.numbers import MARKER, ends_in_marker, final_answer, parse_number
from levelhead.tasks.splits import in_seed_order, limit_sides, split_by_group

INSTRUCTION = f"Work it out, then end with a line of {MARKER} and the answer as a number."
"""Put under every question."""

CORRECT_SHARE = 0.9
"""What the right number is worth; the rest goes to the form of the answer."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    Attributes:
        id: Unique within the task and stable across runs.
        question: The problem.
        solution: A perfect answer, with the answer marked as asked.
        answer: The number, exactly (``3/4``), or the mathematics as the data write it.
        strata: What scores are told apart by.
    """

    id: str
    question: str
    solution: str
    answer: str
    strata: Mapping[str, str] = field(default_factory=dict)


class MathTask(SingleTurnTask):
    r"""Problems with an exact answer: GSM8K's numbers (Cobbe et al. 2021), or the mathematics of MATH and AIME.

    A score lies in [0, 1]: 0.9 for the right answer (part ``correct``) and 0.1 for giving it as asked (part
    ``format``): a number after one ``####`` on the last line, mathematics in one ``\boxed{}`` at the end.  A completion
    that gives no such answer scores 0.
    """

    def __init__(self, section: Math) -> None:
        """Load the problems, or make them where the section names no file.

        Raises:
            InputError: A file is missing or empty, or a row is malformed; the message names file and line.
        """
        self.name = section.name or section.kind
        self._boxed = section.dataset != "gsm8k"
        problems = _load(section.dataset, section.path) if section.path is not None else _generated(section.items)
        sides = split_by_group(problems, _question_key, section.eval_fraction)
        self._sides = limit_sides(sides, section.limit, section.eval_fraction, lambda problem: problem.id)
        self._solutions = {problem.id: problem.solution for side in self._sides.values() for problem in side}

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        """Yield the split's problems once, in an order that depends on the seed alone."""
        for problem in in_seed_order(self._sides[split], seed, self.name, split):
            instruction = BOX_INSTRUCTION if self._boxed else INSTRUCTION
            message = {"role": "user", "content": f"{problem.question}\n{instruction}"}
            facts = {"answer": problem.answer} | ({"strata": dict(problem.strata)} if problem.strata else {})
            yield Prompt(problem.id, self.name, (message,), facts=facts)

    def strata(self, prompt: Prompt) -> Mapping[str, str]:
        """Return what the data tell problems apart by: MATH's subject, AIME's year; nothing for GSM8K."""
        return dict(prompt.facts.get("strata", {}))

    @property
    def reward_range(self) -> tuple[float, float]:
        """Return 0, of an answer without a number, and 1."""
        return 0.0, 1.0

    @property
    def part_weights(self) -> Mapping[str, float]:
        """Return what the right number and the form are worth."""
        return {"correct": CORRECT_SHARE, "format": 1.0 - CORRECT_SHARE}

    def oracle(self, prompt: Prompt) -> list[str] | None:
        """Return the solution that came with the problem, its calculator annotations left out."""
        return [self._solutions[prompt.id]]

    def score(self, prompt: Prompt, text: str) -> Score:
        """Score one completion in [0, 1] against the exact answer."""
        if self._boxed:
            return _score_mathematics(prompt, text)
        stated = final_answer(text)
        value = None if stated is None else parse_number(stated)
        if value is None:
            return Score(0.0, {"correct": 0.0, "format": 0.0}, valid=False)
        correct = float(value == Fraction(prompt.facts["answer"]))
        form = float(ends_in_marker(text))
        total = CORRECT_SHARE * correct + (1.0 - CORRECT_SHARE) * form
        return Score(total, {"correct": correct, "format": form}, info={"answer": str(value)})

    async def score_batch(self, answers: Sequence[Answer]) -> list[Score | None]:
        """Score many completions, mathematics in a thread: a comparison waits for the process that makes it."""
        if not self._boxed:
            return await super().score_batch(answers)
        return await asyncio.to_thread(lambda: [self.score(answer.prompt, answer.text) for answer in answers])

    def canonical(self, prompt: Prompt, text: str) -> str:
        """Return what a completion gives as its answer; where it gives none, its own text."""
        if self._boxed:
            return (boxed(text) or super().canonical(prompt, text)).replace(" ", "")
        stated = final_answer(text)
        value = None if stated is None else parse_number(stated)
        return super().canonical(prompt, text) if value is None else str(value)

    def constants(self) -> Sequence[str]:
        """Return small whole numbers, given as asked: the form is paid for, and one of them may be the likeliest."""
        return [
            f"\\boxed{{{number}}}" if self._boxed else f"{MARKER} {number}"
            for number in (*range(13), 15, 20, 24, 25, 30, 36, 40, 50, 60, 100)
        ]

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        """Return ``accuracy`` (share of right answers) and ``format`` (share of answers given as asked)."""
        scores = [rollout.score for _, rollout in results if rollout.score is not None]
        if not scores:
            return {}
        return {
            **super().summarize(results),
            held_out.ACCURACY: sum(score.parts["correct"] for score in scores) / len(scores),
            held_out.FORMAT: sum(score.parts["format"] for score in scores) / len(scores),
        }


def _score_mathematics(prompt: Prompt, text: str) -> Score:
    verdict = check_math(Example("", ((str(prompt.facts["answer"]),),)), text)
    if verdict.stated is None:
        return Score(0.0, {"correct": 0.0, "format": 0.0}, valid=False)
    correct, form = float(verdict.right), float(ends_in_box(text))
    info = {"answer": verdict.stated} | ({"note": verdict.note} if verdict.note else {})
    return Score(
        CORRECT_SHARE * correct + (1.0 - CORRECT_SHARE) * form, {"correct": correct, "format": form}, info=info
    )


def _load(dataset: str, path: str | list[str]) -> list[Problem]:
    return [
        Problem(example.id, example.question, example.solution, _exact(dataset, example), example.strata)
        for example in load(dataset, path)
    ]


def _exact(dataset: str, example: Example) -> str:
    answer = example.answers[0][0]
    return str(parse_number(answer)) if dataset == "gsm8k" else answer


def _generated(n: int) -> list[Problem]:
    return [
        Problem(f"made-{i}", question, solution, str(Fraction(answer)))
        for i, (question, solution, answer) in enumerate(generate(n))
    ]


def _question_key(problem: Problem) -> str:
    return " ".join(problem.question.lower().split())
