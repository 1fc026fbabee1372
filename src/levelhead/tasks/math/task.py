"""The ``math`` task: a word problem in, its reasoning and one exact number out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from levelhead.metrics import held_out
from levelhead.recipe.tasks import Math
from levelhead.records import Prompt, Rollout, Score
from levelhead.tasks.base import SingleTurnTask, Split
from levelhead.tasks.files import Row, find_files, read_rows
from levelhead.tasks.math.items import generate
from levelhead.tasks.math.numbers import MARKER, ends_in_marker, final_answer, parse_number
from levelhead.tasks.splits import in_seed_order, limit_sides, split_by_group

INSTRUCTION = f"Work it out, then end with a line of {MARKER} and the answer as a number."
"""Put under every question."""

CORRECT_SHARE = 0.9
"""What the right number is worth; the rest goes to the form of the answer."""

_CALCULATOR = re.compile(r"<<[^<>\n]*>>")


@dataclass(frozen=True, slots=True)
class Problem:
    """One word problem.

    Attributes:
        id: Unique within the task and stable across runs.
        question: The problem.
        solution: A perfect answer, ``#### N`` included.
        answer: The number.
    """

    id: str
    question: str
    solution: str
    answer: Fraction


class MathTask(SingleTurnTask):
    """GSM8K's schema (Cobbe et al. 2021): ``question``, and ``answer`` ending in ``#### N``.

    A score lies in [0, 1]: 0.9 for the right number (part ``correct``) and 0.1 for giving it as asked, after one
    ``####`` on the last line (part ``format``).  A completion that gives no single number as its answer scores 0.
    """

    def __init__(self, section: Math) -> None:
        """Load the problems, or make them where the section names no file.

        Raises:
            InputError: A file is missing or empty, or a row is malformed; the message names file and line.
        """
        self.name = section.name or section.kind
        problems = _load(section.path) if section.path is not None else _generated(section.items)
        sides = split_by_group(problems, _question_key, section.eval_fraction)
        self._sides = limit_sides(sides, section.limit, section.eval_fraction, lambda problem: problem.id)
        self._solutions = {problem.id: problem.solution for side in self._sides.values() for problem in side}

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        """Yield the split's problems once, in an order that depends on the seed alone."""
        for problem in in_seed_order(self._sides[split], seed, self.name, split):
            message = {"role": "user", "content": f"{problem.question}\n{INSTRUCTION}"}
            yield Prompt(problem.id, self.name, (message,), facts={"answer": str(problem.answer)})

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
        stated = final_answer(text)
        value = None if stated is None else parse_number(stated)
        if value is None:
            return Score(0.0, {"correct": 0.0, "format": 0.0}, valid=False)
        correct = float(value == Fraction(prompt.facts["answer"]))
        form = float(ends_in_marker(text))
        total = CORRECT_SHARE * correct + (1.0 - CORRECT_SHARE) * form
        return Score(total, {"correct": correct, "format": form}, info={"answer": str(value)})

    def canonical(self, prompt: Prompt, text: str) -> str:
        """Return the number that a completion gives as its answer; where it gives none, its own text."""
        stated = final_answer(text)
        value = None if stated is None else parse_number(stated)
        return super().canonical(prompt, text) if value is None else str(value)

    def constants(self) -> Sequence[str]:
        """Return small whole numbers, given as asked: the form is paid for, and one of them may be the likeliest."""
        return [f"{MARKER} {number}" for number in (*range(13), 15, 20, 24, 25, 30, 36, 40, 50, 60, 100)]

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        """Return ``accuracy`` (share of right numbers) and ``format`` (share of answers given as asked)."""
        scores = [rollout.score for _, rollout in results if rollout.score is not None]
        if not scores:
            return {}
        return {
            held_out.ACCURACY: sum(score.parts["correct"] for score in scores) / len(scores),
            held_out.FORMAT: sum(score.parts["format"] for score in scores) / len(scores),
        }


def _load(path: str | list[str]) -> list[Problem]:
    files = find_files(path, [".jsonl"])
    stems = [file.stem for file in files]
    problems = []
    for file in files:
        label = file.stem if stems.count(file.stem) == 1 else str(file)
        problems += [_problem(row, f"{label}-{row.line}") for row in read_rows(file)]
    return problems


def _problem(row: Row, identifier: str) -> Problem:
    question, answer = row.text("question"), row.text("answer")
    if MARKER not in answer:
        raise row.error(f"the field 'answer' must end in '{MARKER} N', N being the number; it ends in {answer[-40:]!r}")
    reasoning, final = _CALCULATOR.sub("", answer).rsplit(MARKER, 1)
    value = parse_number(final)
    if value is None:
        raise row.error(f"the field 'answer' must end in '{MARKER} N', and {final.strip()[:40]!r} is not one number")
    # A stray marker in the reasoning would make the perfect answer look like a hedge.
    solution = f"{reasoning.replace(MARKER, '').rstrip()}\n{MARKER} {final.strip()}".lstrip("\n")
    return Problem(identifier, question.strip(), solution, value)


def _generated(n: int) -> list[Problem]:
    return [
        Problem(f"made-{i}", question, solution, Fraction(answer))
        for i, (question, solution, answer) in enumerate(generate(n))
    ]


def _question_key(problem: Problem) -> str:
    return " ".join(problem.question.lower().split())
