"""HaluEval: questions, dialogues, summaries and replies with a right answer and a hallucinated one (Li et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead.contrib.faithfulness.data import parse_row
from levelhead.tasks.datasets.base import Dataset, Example
from levelhead.tasks.datasets.checkers.spans import check_words
from levelhead.tasks.files import Row

_ASKS = {
    "qa": "{text}\n\n{question}",
    "dialogue": "{text}\n\n{question}\nWrite the next reply.",
    "summarization": "{text}\n\nSummarise the text.",
    "general": "A user asked: {question}\nThe reply was: {text}\nIs any of it made up? Answer yes or no.",
}


def parse(row: Row) -> Iterator[Example]:
    """Read a row as the ``faithfulness`` task reads it, whichever of the four files it is from.

    Raises:
        InputError: The row fits no schema, or a field is missing, empty or of another type.
    """
    item = parse_row(row)
    question = _ASKS[item.kind].format(text=item.text, question=item.question)
    answer = " ".join(item.right.split())
    # The field ID of general_data.json is no key: the published file repeats some of its values.
    yield Example(question, ((answer,),), f"#### {answer}", strata={"kind": item.kind})


DATASET = Dataset(
    name="halueval",
    title="HaluEval (Li et al. 2023, arXiv:2305.11747)",
    domain="qa",
    origin="https://github.com/RUCAIBox/HaluEval, data/{qa,dialogue,summarization,general}_data.json",
    licence="MIT",
    schemas=(
        ("knowledge", "question", "right_answer", "hallucinated_answer"),
        ("knowledge", "dialogue_history", "right_response", "hallucinated_response"),
        ("document", "right_summary", "hallucinated_summary"),
        ("user_query", "chatgpt_response", "hallucination"),
        ("user_query", "chatgpt_response", "hallucination_label"),
    ),
    parse=parse,
    check=check_words,
    instruction="End with a line of #### and the answer.",
    suffixes=(".jsonl", ".json"),
)
