"""From a recipe's ``path`` to examples: every row is held against the data set's fields, and no id stands twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from levelhead.errors import InputError
from levelhead.tasks.datasets import rows
from levelhead.tasks.datasets.base import Dataset, Example
from levelhead.tasks.datasets.registry import dataset_named, names_by_fields
from levelhead.tasks.files import Row


def load(name: str, path: str | Sequence[str]) -> list[Example]:
    """Read the examples of a data set, in the order of its files.

    Args:
        name: The data set's name in the registry.
        path: Its file, files, folder, or ``hf:NAME``.

    Raises:
        InputError: Something is missing or malformed; one line that names the file, the line and the field.
    """
    dataset = dataset_named(name)
    return [example for label, source in rows.read(dataset, path) for example in _examples(dataset, label, source)]


def _examples(dataset: Dataset, label: str, source: Sequence[Row]) -> Iterator[Example]:
    places: dict[str, Row] = {}
    answers: dict[str, Example] = {}
    for row in source:
        _hold_against_schema(dataset, row)
        for example in dataset.parse(row):
            first = places.setdefault(example.key, row) if example.key else row
            if example.key and example.key in answers:
                raise row.error(f"the id {example.key[:60]!r} stands in {first.unit} {first.line} already")
            same = answers.setdefault(example.key or example.question, example)
            if same.answers != example.answers:
                raise row.error(
                    f"the same question has another answer in an earlier {row.unit}: {same.answers[0]!r:.80}"
                )
            yield replace(example, id=f"{label}-{example.key or row.line}")


def _hold_against_schema(dataset: Dataset, row: Row) -> None:
    """Refuse a row that lacks a field, and say which data set has the fields that it does have."""
    fields = set(row.values)
    if any(fields.issuperset(schema) for schema in dataset.schemas):
        return
    others = [name for name in names_by_fields(fields) if name != dataset.name]
    if not dataset.schemas and not others:  # a shape that only the parser can tell
        return
    nearest = max(
        dataset.schemas, default=("qa_pairs",), key=lambda schema: len(fields.intersection(schema)) / len(schema)
    )
    missing = next(key for key in nearest if key not in fields)
    hint = f"; these are the fields of {' or '.join(others)} (tasks[].dataset)" if others else ""
    have = ", ".join(map(repr, row.values)) or "none"
    raise InputError(
        f"{row.where}: the field {missing!r} is missing; a {dataset.name} row needs {', '.join(nearest)}, "
        f"and the fields are: {have[:200]}{hint}"
    )
