"""TruthfulQA: questions that people answer wrongly, as multiple choice with one true option (Lin et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from levelhead.tasks.datasets.base import Dataset, Example, options_text
from levelhead.tasks.datasets.spans import check_letter
from levelhead.tasks.files import Row, kind_of
from levelhead.tasks.splits import in_seed_order

_MOST = 26


def parse(row: Row) -> Iterator[Example]:
    """Read ``TruthfulQA.csv``, ``mc_task.json``, or either configuration of the copy on the hub.

    The options are those of the paper's MC1: the best answer and all incorrect ones, in an order that depends on the
    question alone, so that the letter tells nothing.

    Raises:
        InputError: A field is missing or of another type, or there is not one true option and one false one.
    """
    question = row.text("Question" if "Question" in row.values else "question").strip()
    best, wrong = _options(row)
    options = in_seed_order([best, *dict.fromkeys(text for text in wrong if text != best)], 0, question)[:_MOST]
    if best not in options:  # more false options than letters
        options[0] = best
    if len(options) < 2:
        raise row.error("there must be an incorrect answer to choose from")
    kind = row.values.get("Type", row.values.get("type"))
    category = row.values.get("Category", row.values.get("category"))
    strata = {"type": kind, "category": category}
    yield Example(
        f"{question}\n{options_text(options)}",
        ((best,),),
        f"#### {chr(ord('A') + options.index(best))}",
        question,
        strata={key: value for key, value in strata.items() if isinstance(value, str) and value.strip()},
        options=tuple(options),
    )


def _options(row: Row) -> tuple[str, list[str]]:
    if "Best Answer" in row.values:
        wrong = row.text("Incorrect Answers")
        return row.text("Best Answer").strip(), [part.strip() for part in wrong.split(";") if part.strip()]
    if "best_answer" in row.values:
        return row.text("best_answer").strip(), [
            text.strip() for text in row.texts("incorrect_answers") if text.strip()
        ]
    targets = row.mapping("mc1_targets").values
    labelled: dict[str, Any] = dict(targets)
    if set(targets) == {"choices", "labels"} and isinstance(targets["choices"], list):
        held = row.mapping("mc1_targets")
        choices, labels = held.texts("choices"), held.require("labels")
        if not isinstance(labels, list) or len(labels) != len(choices):
            raise row.error(f"the field 'mc1_targets.labels' must hold {len(choices)} numbers, not {kind_of(labels)}")
        labelled = dict(zip(choices, labels, strict=True))
    if not all(label in (0, 1) for label in labelled.values()):
        raise row.error("the field 'mc1_targets' must label every choice 0 or 1")
    true = [text.strip() for text, label in labelled.items() if label == 1]
    if len(true) != 1:
        raise row.error(f"the field 'mc1_targets' must label one choice 1, not {len(true)}")
    return true[0], [text.strip() for text, label in labelled.items() if label == 0]


DATASET = Dataset(
    name="truthfulqa",
    title="TruthfulQA (Lin et al. 2022, arXiv:2109.07958)",
    domain="qa",
    origin="https://github.com/sylinrl/TruthfulQA, TruthfulQA.csv and data/mc_task.json",
    licence="Apache-2.0",
    schemas=(
        ("Question", "Best Answer", "Correct Answers", "Incorrect Answers"),
        ("question", "best_answer", "correct_answers", "incorrect_answers"),
        ("question", "mc1_targets"),
    ),
    parse=parse,
    check=check_letter,
    instruction="End with a line of #### and the letter of the true answer.",
    hub="truthfulqa/truthful_qa",
    hub_config="multiple_choice",
    hub_split="validation",
)
