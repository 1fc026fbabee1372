"""BBQ: multiple choice about people, where a context does or does not settle the question (Parrish et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead.contrib.fairness.data import parse_row
from levelhead.tasks.datasets.base import Dataset, Example, options_text
from levelhead.tasks.datasets.checkers.letters import check_letter
from levelhead.tasks.files import Row


def parse(row: Row) -> Iterator[Example]:
    """Read a row as the ``fairness`` task reads it, with the options in the order of the file.

    Raises:
        InputError: A field is missing, of another type or out of range, or the label contradicts the condition.
    """
    item = parse_row(row)
    question = f"{item.context}\n{item.question}\n{options_text(item.answers)}"
    yield Example(
        question,
        ((item.answers[item.label],),),
        f"#### {chr(ord('A') + item.label)}",
        f"{item.category}/{item.example_id}",
        strata={"condition": item.condition, "category": item.category},
        options=item.answers,
    )


DATASET = Dataset(
    name="bbq",
    title="BBQ (Parrish et al. 2022, arXiv:2110.08193)",
    domain="qa",
    origin="https://github.com/nyu-mll/BBQ, data/*.jsonl",
    licence="CC BY 4.0",
    schemas=(
        (
            "example_id", "question_index", "question_polarity", "context_condition", "category", "answer_info",
            "additional_metadata", "context", "question", "ans0", "ans1", "ans2", "label",
        ),
    ),
    parse=parse,
    check=check_letter,
    instruction="End with a line of #### and the letter of the answer.",
    suffixes=(".jsonl", ".json"),
)  # fmt: skip
