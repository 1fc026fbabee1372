"""Rows of CSV, TSV and Parquet files and of Hugging Face data sets, with errors that name the place.

``pyarrow`` and ``datasets`` are imported where they are needed and nowhere else.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from levelhead.errors import InputError, first_line
from levelhead.policy import hub
from levelhead.tasks.files import LONGEST_TEXT, reading

DELIMITERS: Mapping[str, str] = {".csv": ",", ".tsv": "\t"}
"""What divides the fields of a line, by the ending of the file's name."""
PARQUET = frozenset({".parquet", ".pq"})
"""Endings of Parquet files."""
MOST_FILES = 10_000
"""Files and folders in a data set's local folder: ``datasets`` looks at each, and a home folder would take minutes."""


def delimited_rows(path: Path, delimiter: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line that each row begins at, and its fields by the names of the header.

    Raises:
        InputError: The file cannot be read, is no UTF-8 text or no such table, or two columns share a name.
    """
    csv.field_size_limit(LONGEST_TEXT)
    try:
        with reading(path), path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header = next(reader, [])
            if len(set(header)) != len(header) or not all(name.strip() for name in header):
                raise InputError(
                    f"{path}, line 1: every column needs a name of its own; the header is {str(header)[:200]}"
                )
            start = reader.line_num + 1
            for row in reader:
                if row and len(row) != len(header):
                    raise InputError(
                        f"{path}, line {start}: {len(row)} fields where the header has {len(header)}; "
                        "put fields with commas or line breaks in double quotes"
                    )
                if row:
                    yield start, dict(zip(header, row, strict=True))
                start = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not valid CSV ({error})") from error


def parquet_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file as plain Python values.

    Raises:
        InputError: pyarrow is not installed, or the file is no readable Parquet file.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise InputError(f"{path}: reading Parquet needs pyarrow; pip install pyarrow") from error
    try:
        rows: list[dict[str, Any]] = read_table(path).to_pylist()
    except (ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({first_line(error)[:200]})") from error
    return rows


def hub_rows(name: str, config: str | None, split: str, *, why: str) -> Iterable[Mapping[str, Any]]:
    """Return the rows of a split of a Hugging Face data set, from the hub or its cache.

    Args:
        name: The data set, ``owner/name``, or a folder that holds one.
        config: Its configuration, where it has several.
        split: Which split.
        why: Begins an error: why the name is taken for a data set of the hub.

    Raises:
        InputError: ``datasets`` is not installed, or the data set cannot be loaded.
    """
    try:
        import datasets
    except ImportError as error:
        raise InputError(f"{name}: {why}to load it as a Hugging Face data set, pip install datasets") from error
    if Path(name).is_dir() and sum(1 for _ in islice(Path(name).rglob("*"), MOST_FILES + 1)) > MOST_FILES:
        raise InputError(f"{name}: {why}a folder of more than {MOST_FILES} files is no data set; name the data's own")
    try:
        with hub.without_waiting(name):
            rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(name, config, split=split)
    except Exception as error:  # what the loader raises differs by back end and version
        reason = first_line(error)[:200]
        message = f"{name}: {why}not a loadable Hugging Face data set (config {config}, split {split}): {reason}"
        if isinstance(error, OSError) and not Path(name).is_dir() and not hub.reachable():
            message += (
                "\nThe hub cannot be reached from here: set path to a local file, or HF_HOME to a cache that holds the "
                "data set, or connect (HF_ENDPOINT for a mirror) and, if it is gated, `hf auth login`."
            )
        raise InputError(message) from error
    return rows
