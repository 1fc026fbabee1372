"""DROP: questions about a passage that take counting, sorting or adding (Dua et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from levelhead.tasks.datasets.base import Dataset, Example
from levelhead.tasks.datasets.spans import SEPARATOR, check_spans
from levelhead.tasks.files import Row, kind_of

_DATE = ("day", "month", "year")


def parse(row: Row) -> Iterator[Example]:
    """Read the authors' file, one object of passages by their id, a passage, or a row of the copy on the hub.

    A passage holds ``passage`` and ``qa_pairs``; each of these ``question``, ``query_id``, ``answer`` and, in the dev
    set, ``validated_answers``.  A row of the hub holds ``passage``, ``question``, ``query_id`` and ``answers_spans``.
    As in the authors' own copy for the hub, a question whose answer is empty is left out.

    Raises:
        InputError: A field is missing or of another type.
    """
    if "qa_pairs" in row.values:
        yield from _passage(row, row.text("passage"))
    elif "answers_spans" in row.values:
        yield _hub_row(row)
    else:
        for key in row.values:
            passage = row.mapping(key)
            if "qa_pairs" not in passage.values:
                raise row.error(
                    f"passage {key[:60]!r}: the field 'qa_pairs' is missing; a drop file holds passages with 'passage' "
                    "and 'qa_pairs', or rows with 'passage', 'question' and 'answers_spans'"
                )
            yield from _passage(passage, passage.text("passage"))


def _passage(row: Row, passage: str) -> Iterator[Example]:
    pairs = row.require("qa_pairs")
    if not isinstance(pairs, list) or not all(isinstance(pair, dict) for pair in pairs):
        raise row.error(f"the field 'qa_pairs' must be a list of objects, not {kind_of(pairs)}")
    for values in pairs:
        pair = Row(row.path, row.line, values, row.unit)
        candidates = [pair.mapping("answer")]
        more = values.get("validated_answers") or []
        if not isinstance(more, list) or not all(isinstance(answer, dict) for answer in more):
            raise pair.error(f"the field 'validated_answers' must be a list of objects, not {kind_of(more)}")
        candidates += [Row(row.path, row.line, answer, row.unit) for answer in more]
        answers = [spans for spans in map(_spans, candidates) if spans and spans[0].strip()]
        if answers:
            yield _example(pair, passage, answers)


def _spans(answer: Row) -> tuple[str, ...]:
    """Return an answer as the official script reads it: its number, else its spans, else its date."""
    number = answer.values.get("number", "")
    if isinstance(number, bool) or not isinstance(number, str | int | float) or number != number:
        raise answer.error(f"the field 'number' must be a number, not {kind_of(number)}")
    if number != "":
        return (str(number),)
    spans = answer.texts("spans") if "spans" in answer.values else []
    if spans:
        return tuple(spans)
    if "date" not in answer.values:
        raise answer.error("the field 'answer' needs one of 'number', 'spans' and 'date'")
    date = answer.mapping("date")
    return (" ".join(str(date.values.get(part, "")) for part in _DATE),)


def _hub_row(row: Row) -> Example:
    held = row.mapping("answers_spans")
    spans = [span for span in held.texts("spans") if span.strip()]
    types = held.texts("types", length=len(held.texts("spans")))
    if not spans:
        raise row.error("the field 'answers_spans' holds no answer")
    return _example(row, row.text("passage"), _unflattened(spans, types))


def _unflattened(spans: Sequence[str], types: Sequence[str]) -> list[tuple[str, ...]]:
    """Tell annotators' answers apart again: the hub's copy writes the spans of all of them one after the other.

    Numbers and dates are an answer each.  Spans that repeat as a whole are one answer, given several times; where some
    span repeats they are alternatives; where none does they are one answer of several spans.
    """
    if any(kind != "span" for kind in types):
        return list(dict.fromkeys((span,) for span in spans))
    for size in range(1, len(spans) // 2 + 1):
        if len(spans) % size == 0 and list(spans) == list(spans[:size]) * (len(spans) // size):
            return [tuple(spans[:size])]
    repeated = len(set(spans)) < len(spans)
    return list(dict.fromkeys((span,) for span in spans)) if repeated else [tuple(spans)]


def _example(row: Row, passage: str, answers: Sequence[tuple[str, ...]]) -> Example:
    question = f"{passage.strip()}\n\n{row.text('question').strip()}"
    solution = f"#### {f'{SEPARATOR} '.join(' '.join(span.split()) for span in answers[0])}"
    return Example(question, tuple(dict.fromkeys(answers)), solution, row.text("query_id"))


DATASET = Dataset(
    name="drop",
    title="DROP (Dua et al. 2019, arXiv:1903.00161)",
    domain="qa",
    origin="https://allenai.org/data/drop, drop_dataset.zip: drop_dataset_{train,dev}.json",
    licence="CC BY-SA 4.0",
    schemas=(),  # the authors' file is one object, whose fields are the passages' ids
    parse=parse,
    check=check_spans,
    instruction=f"End with a line of #### and the answer; put '{SEPARATOR}' between several.",
    hub="ucinlp/drop",
)
