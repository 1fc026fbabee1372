"""HaluEval (Li et al. 2023, https://github.com/RUCAIBox/HaluEval): its rows, recognised by their keys, and our own."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from levelhead.contrib.items import Item
from levelhead.tasks.datasets.base import Dataset, Example
from levelhead.tasks.datasets.load import dataset_named, read
from levelhead.tasks.datasets.spans import check_words
from levelhead.tasks.files import Row
from levelhead.tasks.splits import stable_hash
from levelhead.tasks.text_match import contains_quote, normalize_answer, sentences

Kind = Literal["qa", "dialogue", "summarization", "general"]

UNKNOWN = "unknown"
"""How a policy abstains, and how a row says that nothing in its text answers its question."""
_ABSTENTIONS = (
    "unknown", "not known", "not stated", "not mentioned", "not given", "no answer", "none", "unanswerable",
    "cannot be determined", "can't be determined", "cannot answer", "can't answer", "not enough information",
    "not enough info", "the text does not say", "the text does not tell", "I do not know", "I don't know",
)  # fmt: skip
ABSTENTIONS = frozenset(normalize_answer(phrase) for phrase in _ABSTENTIONS)
"""Normalised answers that count as abstaining."""

_SCHEMAS: dict[Kind, tuple[str, ...]] = {
    "qa": ("knowledge", "question", "right_answer", "hallucinated_answer"),
    "dialogue": ("knowledge", "dialogue_history", "right_response", "hallucinated_response"),
    "summarization": ("document", "right_summary", "hallucinated_summary"),
    "general": ("user_query", "chatgpt_response", "hallucination"),
}


@dataclass(frozen=True, slots=True)
class FaithfulnessItem(Item):
    """One HaluEval row, whatever its schema.

    Attributes:
        key: Hash of the content, the same wherever the row stands.
        kind: Which schema it came in.
        text: What may be quoted as evidence: the knowledge, the document, or the response to be judged.
        question: The question, the dialogue so far, the user's query; empty for a summary.
        right: The right answer; ``unknown`` where the text holds none; ``yes`` (hallucinated) or ``no`` for a verdict.
        hallucinated: A plausible wrong answer; the other verdict for a verdict.
        answerable: Whether the text supports an answer.
        spans: Parts of the response that were marked as hallucinated and stand in it word for word.
    """

    key: str
    kind: Kind
    text: str
    question: str
    right: str
    hallucinated: str
    answerable: bool = True
    spans: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """Key that the train/eval split is made by: rows about one text (one query, for verdicts) stay together."""
        return normalize_answer(self.question if self.kind == "general" else self.text) or self.key


def read_items(path: str | Sequence[str]) -> list[FaithfulnessItem]:
    """Read HaluEval files, each of any schema or several, in any form of docs/data.md, or ``hf:NAME``.

    Raises:
        InputError: A file is missing or empty, a line is malformed, or a row fits no schema or lacks a field; the
            message names the file, the line and the field.
    """
    return [parse_row(row) for _, rows in read(dataset_named("halueval"), path) for row in rows]


def parse_row(row: Row) -> FaithfulnessItem:
    """Validate one row, recognising its schema by its keys.

    Raises:
        InputError: The row fits no schema, or a field is missing, empty or of another type.
    """
    kind = _schema(row)
    if kind == "general":
        return _verdict(row)
    if kind == "qa":
        return qa_item(row.text("knowledge"), row.text("question"), row.text("right_answer"), _wrong(row, "answer"))
    if kind == "dialogue":
        text, question = row.text("knowledge"), row.text("dialogue_history")
        return make_item(kind, text, question, row.text("right_response"), _wrong(row, "response"))
    return make_item(kind, row.text("document"), "", row.text("right_summary"), _wrong(row, "summary"))


def qa_item(knowledge: str, question: str, right: str, hallucinated: str) -> FaithfulnessItem:
    """Make a question item; a right answer that abstains, and does not stand in the knowledge, means: no answer."""
    item = make_item("qa", knowledge, question, right, hallucinated)
    if normalize_answer(right) in ABSTENTIONS and not contains_quote(knowledge, right):
        return replace(item, right=UNKNOWN, answerable=False)
    return item


def make_item(kind: Kind, text: str, question: str, right: str, hallucinated: str) -> FaithfulnessItem:
    """Make an answerable item, its key the hash of its content."""
    content = f"{kind}\x1f{text}\x1f{question}\x1f{right}\x1f{hallucinated}"
    key = hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()[:16]
    return FaithfulnessItem(key, kind, text.strip(), question.strip(), right.strip(), hallucinated.strip())


def withhold(item: FaithfulnessItem, share: float) -> FaithfulnessItem:
    """Turn a share of the questions into ones that their text no longer answers.

    The sentences that hold the right answer are taken out and abstaining becomes right.  Only questions whose answer
    stands in some sentence of the text, and not in all, can be treated so; which of them are is decided by their key.
    """
    if item.kind != "qa" or not item.answerable or stable_hash("withhold/" + item.key) >= share:
        return item
    parts = sentences(item.text)
    other_parts = [part for part in parts if not contains_quote(part, item.right)]
    rest = " ".join(other_parts)
    if not other_parts or len(other_parts) == len(parts) or contains_quote(rest, item.right):
        return item
    return replace(item, text=rest, right=UNKNOWN, answerable=False)


def _schema(row: Row) -> Kind:
    keys = set(row.values) | ({"hallucination"} if "hallucination_label" in row.values else set())
    best = max(_SCHEMAS, key=lambda kind: len(keys & set(_SCHEMAS[kind])) / len(_SCHEMAS[kind]))
    missing = [key for key in _SCHEMAS[best] if key not in keys]
    if len(missing) == len(_SCHEMAS[best]):
        schemas = "; ".join(f"{kind}: {', '.join(fields)}" for kind, fields in _SCHEMAS.items())
        raise row.error(f"fits none of HaluEval's schemas ({schemas})")
    if missing:
        raise row.error(f"the field {missing[0]!r} is missing; a {best} row needs {', '.join(_SCHEMAS[best])}")
    return best


def _wrong(row: Row, what: str) -> str:
    # HaluEval has rows whose generated hallucination came out empty; they still have a right answer to learn.
    return row.text(f"hallucinated_{what}", empty=True)


def _verdict(row: Row) -> FaithfulnessItem:
    key = "hallucination" if "hallucination" in row.values else "hallucination_label"
    label = row.text(key).strip().casefold()
    if label not in ("yes", "no"):
        raise row.error(f"the field {key!r} must be yes or no, not {label[:60]!r}")
    response = row.text("chatgpt_response")
    marked = row.texts("hallucination_spans") if "hallucination_spans" in row.values else []
    item = make_item("general", response, row.text("user_query"), label, "no" if label == "yes" else "yes")
    spans = tuple(span for span in marked if contains_quote(response, span)) if label == "yes" else ()
    return replace(item, spans=spans)


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
    schemas=(*_SCHEMAS.values(), ("user_query", "chatgpt_response", "hallucination_label")),
    parse=parse,
    check=check_words,
    instruction="End with a line of #### and the answer.",
    suffixes=(".jsonl", ".json"),
)


# One form for every fact and few words a property: what a tiny policy has to learn here is to read, not to speak.
_FACT = "{name}'s {what} is {value}."
_QUESTION = "What is {name}'s {what}?"
_NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Frank", "Grace", "Henry", "Ivan", "Julia")
_VALUES = {
    "city": ("Rome", "Paris", "Oslo", "Cairo", "Lima", "Delhi"),
    "color": ("red", "blue", "green", "black", "white", "pink"),
    "sport": ("tennis", "golf", "judo", "rowing", "hockey", "boxing"),
    "dish": ("rice", "soup", "pasta", "fish", "salad", "stew"),
    "drink": ("tea", "coffee", "milk", "juice", "water", "cider"),
    "subject": ("math", "history", "music", "art", "law", "biology"),
    "language": ("French", "Arabic", "Hindi", "Greek", "Dutch", "Korean"),
    "game": ("chess", "poker", "darts", "bingo", "bridge", "dominoes"),
}


def generate_items(count: int, unanswerable: float) -> list[FaithfulnessItem]:
    """Make ``count`` different items, about the share ``unanswerable`` of them without an answer in their text.

    Two to four shuffled facts about one or two people; the question asks for one.  In half of the items the
    hallucinated answer is what the text says of the other person, in the other half the text does not hold it.  For an
    unanswerable question another fact about the same person stands in the place of the one that answers it.  The same
    arguments give the same items, and a larger count the same and more.
    """
    items: list[FaithfulnessItem] = []
    seen: set[str] = set()
    number = 0
    while len(items) < count:
        item = _item(random.Random(f"levelhead/faithfulness/{number}"), unanswerable)
        number += 1
        if item.group not in seen:
            seen.add(item.group)
            items.append(item)
    return items


def _item(rng: random.Random, unanswerable: float) -> FaithfulnessItem:
    name, other = rng.sample(_NAMES, 2)
    size = rng.randint(2, 4)
    what, *spare = rng.sample(list(_VALUES), size + 1)
    right, wrong = rng.sample(_VALUES[what], 2)
    missing = rng.random() < unanswerable
    # Where the fact is missing another takes its place: a shorter text would give that away.
    first = spare.pop() if missing else what
    facts = [(name, first, rng.choice(_VALUES[first]) if missing else right)]
    if rng.random() < 0.5:
        facts.append((other, what, wrong))
    while len(facts) < size:
        filler = spare.pop()
        facts.append((rng.choice((name, other)), filler, rng.choice(_VALUES[filler])))
    rng.shuffle(facts)
    text = " ".join(_FACT.format(name=n, what=w, value=v) for n, w, v in facts)
    return qa_item(text, _QUESTION.format(name=name, what=what), UNKNOWN if missing else right, wrong)
