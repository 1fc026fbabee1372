"""Where the rows come from: a file, a Hugging Face data set, or something in memory.  All become plain dicts."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from levelhead.errors import InputError
from levelhead.policy import hub
from levelhead.recipe.tasks import Function
from levelhead.tasks.files import check_text, missing_data, read_rows

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_JSON = {".jsonl", ".json", ".ndjson"}
_PARQUET = {".parquet", ".pq"}


@dataclass(frozen=True, slots=True)
class Record:
    """One row of the data.

    Attributes:
        number: Position in the data, counted from 1.
        where: Place to name in an error ("data.csv, line 3").
        values: Column name to value.
    """

    number: int
    where: str
    values: Mapping[str, Any]

    def error(self, message: str) -> InputError:
        """Return (not raise) an error about this row."""
        return InputError(f"{self.where}: {message}")


@dataclass(frozen=True, slots=True)
class Table:
    """All rows, and what to call them in an error."""

    source: str
    records: list[Record]

    @property
    def columns(self) -> list[str]:
        """Every column that any row has, in order of appearance."""
        return list(dict.fromkeys(key for record in self.records for key in record.values))


def load_table(section: Function, data: Iterable[Mapping[str, Any]] | None) -> Table:
    """Read the rows that a section, or the caller in Python, names.

    Raises:
        InputError: There are no data or two sources of them, a file or package is missing, or a row is malformed.
    """
    if data is not None:
        if section.path is not None:
            raise InputError(f"data come from tasks[].path ({section.path}) and from Python (data=); give one of them")
        return _from_memory(data, section.limit)
    if section.path is None:
        raise InputError(
            "tasks[].path is missing: name a JSONL, CSV or Parquet file or a Hugging Face data set, "
            "or pass data=... from Python"
        )
    path = Path(section.path).expanduser()
    suffix = path.suffix.lower()
    if suffix in _JSON | _PARQUET | set(_DELIMITERS):
        if not path.is_file():
            raise missing_data(section.path, "no such file")
        return _from_file(path, suffix)
    if path.is_file():
        suffixes = ", ".join(sorted({*_JSON, *_PARQUET, *_DELIMITERS}))
        raise InputError(f"{path}: a data file must end in one of {suffixes}")
    return _from_hub(section)


def _from_file(path: Path, suffix: str) -> Table:
    if suffix in _JSON:
        records = [Record(n, row.where, row.values) for n, row in enumerate(read_rows(path), start=1)]
    elif suffix in _PARQUET:
        records = [Record(n, f"{path}, row {n}", row) for n, row in enumerate(_parquet_rows(path), start=1)]
    else:
        rows = _delimited_rows(path, _DELIMITERS[suffix])
        records = [Record(n, f"{path}, line {line}", row) for n, (line, row) in enumerate(rows, start=1)]
    return _filled(str(path), records)


def _delimited_rows(path: Path, delimiter: str) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header = next(reader, [])
            if len(set(header)) != len(header) or not all(name.strip() for name in header):
                raise InputError(f"{path}, line 1: every column needs a name of its own; the header is {header}")
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
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}); convert the file to UTF-8") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def _parquet_rows(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise InputError(f"{path}: reading Parquet needs pyarrow; pip install pyarrow") from error
    try:
        rows: list[dict[str, Any]] = read_table(path).to_pylist()
    except (ArrowException, OSError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({_first_line(error)})") from error
    return rows


def _from_hub(section: Function) -> Table:
    name = str(section.path)
    try:
        import datasets
    except ImportError as error:
        raise InputError(
            f"{name}: no such file; to load it as a Hugging Face data set, pip install datasets"
        ) from error
    try:
        with hub.without_waiting(name):
            rows = datasets.load_dataset(name, section.dataset_config, split=section.dataset_split)
    except Exception as error:  # what the loader raises differs by back end and version
        message = (
            f"{name}: no such file, and not a loadable Hugging Face data set "
            f"(config {section.dataset_config}, split {section.dataset_split}): {_first_line(error)}"
        )
        if isinstance(error, OSError) and not hub.reachable():
            message += (
                "\nThe hub cannot be reached from here: set path to a local file, or HF_HOME to a cache that holds the "
                "data set, or connect (HF_ENDPOINT for a mirror) and, if it is gated, `hf auth login`."
            )
        raise InputError(message) from error
    source = f"data set {name} [{section.dataset_split}]"
    return _filled(source, [Record(n, f"{source}, row {n}", dict(row)) for n, row in enumerate(rows, start=1)])


def _from_memory(data: Any, limit: int | None) -> Table:
    if isinstance(data, Mapping):
        raise InputError(
            f"data= is a mapping ({', '.join(map(str, data))}); pass one split, or a list of dicts, one a row"
        )
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise InputError(f"data= must be an iterable of dicts, not {type(data).__name__}; files go in tasks[].path")
    endless = not hasattr(data, "__len__") and limit is not None
    records = []
    for number, row in enumerate(islice(data, limit) if endless else data, start=1):
        if not isinstance(row, Mapping):
            raise InputError(f"data, row {number}: a dict is wanted, not {type(row).__name__}")
        records.append(Record(number, f"data, row {number}", dict(row)))
    return _filled("data", records)


def _filled(source: str, records: list[Record]) -> Table:
    """Give every row every column (``None`` where it had none), as a table has it."""
    if not records:
        raise InputError(f"{source}: there is not a single row")
    for record in records:
        check_text(record.where, record.values)
    empty = dict.fromkeys(Table(source, records).columns)
    return Table(source, [Record(r.number, r.where, {**empty, **r.values}) for r in records])


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
