"""Where the rows come from: a file, a Hugging Face data set, or something in memory.  All become plain dicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from levelhead.errors import InputError
from levelhead.recipe.tasks import OwnPrompts
from levelhead.tasks.files import NO_FILE, check_text, missing_data, read_rows
from levelhead.tasks.tables import DELIMITERS, PARQUET, delimited_rows, hub_rows, parquet_rows

_JSON = {".jsonl", ".json", ".ndjson"}


@dataclass(frozen=True, slots=True)
class Record:
    """One row of the data.

    Attributes:
        number: Position in the data, counted from 1.
        where: Place to name in an error ("data.csv, line 3").
        values: Column name to value.
        columnar: Whether it comes from a table of columns, which fills in fields that the row did not have.
        held_out: Whether the caller in Python gave it for evaluation.
    """

    number: int
    where: str
    values: Mapping[str, Any]
    columnar: bool = False
    held_out: bool = False

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


def load_table(
    section: OwnPrompts, data: Iterable[Mapping[str, Any]] | None, eval_data: Iterable[Mapping[str, Any]] | None = None
) -> Table:
    """Read the rows that a section, or the caller in Python, names; those of ``eval_data`` stand behind the others.

    Raises:
        InputError: There are no data or two sources of them, a file or package is missing, or a row is malformed.
    """
    if eval_data is not None:
        table, last = load_table(section, data), _from_memory(eval_data, section.limit, "eval_data")
        n = len(table.records)
        held_out = [replace(record, number=n + record.number, held_out=True) for record in last.records]
        return _filled(table.source, [*table.records, *held_out])
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
    if suffix in _JSON | PARQUET | set(DELIMITERS):
        if not path.is_file():
            raise missing_data(section.path, NO_FILE)
        return _from_file(path, suffix)
    if path.is_file():
        suffixes = ", ".join(sorted({*_JSON, *PARQUET, *DELIMITERS}))
        raise InputError(f"{path}: a data file must end in one of {suffixes}")
    return _from_hub(section)


def _from_file(path: Path, suffix: str) -> Table:
    if suffix in _JSON:
        records = [Record(n, row.where, row.values) for n, row in enumerate(read_rows(path), start=1)]
    elif suffix in PARQUET:
        records = [Record(n, f"{path}, row {n}", row, True) for n, row in enumerate(parquet_rows(path), start=1)]
    else:
        rows = delimited_rows(path, DELIMITERS[suffix])
        records = [Record(n, f"{path}, line {line}", row) for n, (line, row) in enumerate(rows, start=1)]
    return _filled(str(path), records)


def _from_hub(section: OwnPrompts) -> Table:
    name = str(section.path)
    rows = hub_rows(name, section.dataset_config, section.dataset_split, why="no file; ")
    source = f"data set {name} [{section.dataset_split}]"
    return _filled(source, [Record(n, f"{source}, row {n}", dict(row), True) for n, row in enumerate(rows, start=1)])


def _from_memory(data: Any, limit: int | None, name: str = "data") -> Table:
    if isinstance(data, Mapping):
        raise InputError(
            f"{name}= is a mapping ({', '.join(map(str, data))}); pass one split, or a list of dicts, one a row"
        )
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise InputError(f"{name}= must be an iterable of dicts, not {type(data).__name__}; files go in tasks[].path")
    endless = not hasattr(data, "__len__") and limit is not None
    columnar = type(data).__module__.partition(".")[0] in ("datasets", "pyarrow")
    records = []
    for number, row in enumerate(islice(data, limit) if endless else data, start=1):
        if not isinstance(row, Mapping):
            raise InputError(f"{name}, row {number}: a dict is wanted, not {type(row).__name__}")
        records.append(Record(number, f"{name}, row {number}", dict(row), columnar))
    return _filled(name, records)


def _filled(source: str, records: list[Record]) -> Table:
    """Give every row every column (``None`` where it had none), as a table has it."""
    if not records:
        raise InputError(f"{source}: there is not a single row")
    for record in records:
        check_text(record.where, record.values)
    empty = dict.fromkeys(Table(source, records).columns)
    return Table(source, [replace(r, values={**empty, **r.values}) for r in records])
