"""From a recipe's ``path`` to examples: data sets by name, and their rows as they are published.

Files are JSON Lines, JSON, CSV, Parquet or gzip; ``hf:NAME`` is the hub.  Every row is held against the data set's
fields, and no id stands twice.  A data set's module is imported only when it is asked for.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from levelhead import extensions
from levelhead.errors import InputError
from levelhead.tasks.datasets.base import Dataset, Example
from levelhead.tasks.files import Row, check_text, find_files, missing_data, reading, rows_of_text
from levelhead.tasks.tables import DELIMITERS, PARQUET, delimited_rows, hub_rows, parquet_rows

NAMES: tuple[str, ...] = tuple(extensions.OURS["datasets"])
"""Names of all data sets."""


def dataset_named(name: str) -> Dataset:
    """Return a data set by its name in recipes.

    Raises:
        InputError: There is none of that name.
    """
    if name not in NAMES:
        raise InputError(f"tasks[].dataset: no data set is called {name!r}; there are {', '.join(NAMES)}")
    dataset: Dataset = extensions.load("datasets", name)
    return dataset


def names_by_fields(fields: Collection[str]) -> list[str]:
    """Return the data sets whose rows have exactly such fields, the one that needs most of them first."""
    have = set(fields)
    needs = {
        name: max((len(schema) for schema in dataset_named(name).schemas if have.issuperset(schema)), default=0)
        for name in NAMES
    }
    most = max(needs.values())
    return [name for name, count in needs.items() if count == most > 0]


HUB = "hf:"
"""Begins a path that names a data set of the Hugging Face hub: ``hf:NAME``, ``hf:NAME:CONFIG``, ``hf:NAME@SPLIT``."""

_LARGEST = 4 << 30
_MAGIC = {b"PAR1": "a Parquet file; give it the ending .parquet", b"\x1f\x8b": "compressed; give it the ending .gz"}


def read(dataset: Dataset, path: str | Sequence[str]) -> Iterator[tuple[str, list[Row]]]:
    """Yield every source that a recipe's ``path`` names: its label, and its rows.

    Args:
        dataset: Says which files of a folder are its own, and which split of the hub is meant.
        path: File, folder or ``hf:NAME``, or several of them.

    Yields:
        A label (the file's name without ending, the whole path where several share it) and the rows.

    Raises:
        InputError: Something named does not exist or cannot be read; the message names file and line.
    """
    entries = [path] if isinstance(path, str) else list(path)
    local = [entry for entry in entries if not entry.startswith(HUB)]
    files = _files(dataset, local) if local or not entries else {}
    labels = list(files.values())
    for file, label in files.items():
        yield label if labels.count(label) == 1 else str(file), read_file(file)
    for entry in entries:
        if entry.startswith(HUB):
            yield entry.removeprefix(HUB), list(_from_hub(dataset, entry))


def _files(dataset: Dataset, entries: Sequence[str]) -> dict[Path, str]:
    """Return the files and their labels; files of a nested folder are labelled by their path within it."""
    files: dict[Path, str] = {}
    for entry in entries:
        folder = Path(entry).expanduser()
        if dataset.nested and folder.is_dir():
            inside = sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix in dataset.suffixes)
            if not inside:
                raise missing_data(entry, f"the folder holds no {' or '.join('*' + s for s in dataset.suffixes)} file")
            files |= {file: str(file.relative_to(folder).with_suffix("")) for file in inside}
        else:
            files |= {
                file: file.name.removesuffix(".gz").rsplit(".", 1)[0] for file in find_files(entry, dataset.suffixes)
            }
    if not entries:
        find_files([], dataset.suffixes)  # says what an empty list means
    return files


def read_file(path: Path) -> list[Row]:
    """Return the rows of one file, by the ending of its name.

    Raises:
        InputError: It cannot be read, is empty, or is not what its ending says.
    """
    ending = path.suffix.lower()
    if ending in PARQUET:
        values: list[dict[str, Any]] = parquet_rows(path)
        rows = [_checked(Row(path, number, row, "row")) for number, row in enumerate(values, start=1)]
    elif ending in DELIMITERS:
        rows = [_checked(Row(path, line, _nulls(row))) for line, row in delimited_rows(path, DELIMITERS[ending])]
    else:
        rows = rows_of_text(path, _text(path))
    if not rows:
        raise InputError(f"{path}: there is not a single row")
    return rows


def _text(path: Path) -> str:
    with reading(path):
        raw = path.read_bytes()
        packed = path.suffix.lower() == ".gz"
        magic = next((what for start, what in _MAGIC.items() if raw.startswith(start)), None)
        if magic is not None and not packed:
            raise InputError(f"{path}: not JSON but {magic}")
        try:
            return (_unpacked(raw) if packed else raw).decode("utf-8-sig")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{path}: not a whole gzip file ({error})") from error


def _unpacked(raw: bytes) -> bytes:
    reader = zlib.decompressobj(zlib.MAX_WBITS | 16)
    text = reader.decompress(raw, _LARGEST)
    if reader.unconsumed_tail:
        raise EOFError(f"it unpacks to more than {_LARGEST >> 30} GiB")
    if not reader.eof:
        raise EOFError("it is cut off")
    return text if not reader.unused_data else text + gzip.decompress(reader.unused_data)


def _from_hub(dataset: Dataset, entry: str) -> Iterator[Row]:
    name, _, split = entry.removeprefix(HUB).partition("@")
    name, _, config = name.partition(":")
    if not name:
        raise InputError(f"{entry}: name the data set, as in hf:{dataset.hub or 'owner/name'}")
    own = name == dataset.hub
    rows = hub_rows(name, config or (dataset.hub_config if own else None), split or dataset.hub_split, why="")
    for number, row in enumerate(rows, start=1):
        yield _checked(Row(Path(entry), number, dict(row), "row"))


def _checked(row: Row) -> Row:
    check_text(row.where, row.values)
    return row


def _nulls(row: Mapping[str, str]) -> dict[str, Any]:
    """A table writes a missing number as NaN; as a text it would pass for an answer."""
    return {key: float("nan") if value in ("NaN", "nan") else value for key, value in row.items()}


def load(name: str, path: str | Sequence[str]) -> list[Example]:
    """Read the examples of a data set, in the order of its files.

    Args:
        name: The data set's name in the registry.
        path: Its file, files, folder, or ``hf:NAME``.

    Raises:
        InputError: Something is missing or malformed; one line that names the file, the line and the field.
    """
    dataset = dataset_named(name)
    return [example for label, source in read(dataset, path) for example in _examples(dataset, label, source)]


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
