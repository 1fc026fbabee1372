"""HotpotQA: questions whose answer takes facts from two Wikipedia paragraphs (Yang et al. 2018)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from levelhead.tasks.datasets.base import DIFFICULTIES, Dataset, Example
from levelhead.tasks.datasets.spans import check_words
from levelhead.tasks.files import Row, kind_of


def parse(row: Row) -> Iterator[Example]:
    """Read ``_id`` (on the hub ``id``), ``question``, ``answer`` and ``context``; ``type`` and ``level`` where given.

    ``context`` is a list of ``[title, sentences]``, or on the hub an object of the lists ``title`` and ``sentences``.

    Raises:
        InputError: A field is missing or of another shape; the test set's rows lack ``answer``.
    """
    key = row.text("_id" if "_id" in row.values else "id")
    question, answer = row.text("question").strip(), row.text("answer").strip()
    paragraphs = "\n".join(f"{title}: {''.join(sentences).strip()}" for title, sentences in _paragraphs(row))
    level = row.choice("level", DIFFICULTIES) if row.values.get("level") is not None else "medium"
    difficulty = next(candidate for candidate in DIFFICULTIES if candidate == level)
    strata = {"type": row.text("type")} if row.values.get("type") is not None else {}
    shown = f"{paragraphs}\n\n{question}".lstrip()
    yield Example(shown, ((answer,),), f"#### {answer}", key, difficulty=difficulty, strata=strata)


def _paragraphs(row: Row) -> list[tuple[str, list[str]]]:
    value = row.require("context")
    pairs: list[Any]
    if isinstance(value, dict):
        context = row.mapping("context")
        titles, sentences = context.texts("title"), context.require("sentences")
        if not isinstance(sentences, list) or len(sentences) != len(titles):
            raise row.error(f"the field 'context.sentences' must hold a list for each of {len(titles)} titles")
        pairs = list(zip(titles, sentences, strict=True))
    elif isinstance(value, list):
        pairs = value
    else:
        raise row.error(f"the field 'context' must be a list of [title, sentences], not {kind_of(value)}")
    for pair in pairs:
        if not (
            isinstance(pair, list | tuple)
            and len(pair) == 2
            and isinstance(pair[0], str)
            and isinstance(pair[1], list)
            and all(isinstance(sentence, str) for sentence in pair[1])
        ):
            raise row.error(f"the field 'context' must hold [title, sentences] pairs, not {pair!r:.60}")
    return [(pair[0], pair[1]) for pair in pairs]


DATASET = Dataset(
    name="hotpotqa",
    title="HotpotQA (Yang et al. 2018, arXiv:1809.09600)",
    domain="qa",
    origin="https://github.com/hotpotqa/hotpot, hotpot_train_v1.1.json, hotpot_dev_{distractor,fullwiki}_v1.json",
    licence="CC BY-SA 4.0",
    schemas=(("_id", "question", "answer", "context"), ("id", "question", "answer", "context")),
    parse=parse,
    check=check_words,
    instruction="End with a line of #### and the answer, in as few words as the text has it.",
    hub="hotpotqa/hotpot_qa",
    hub_config="distractor",
)
