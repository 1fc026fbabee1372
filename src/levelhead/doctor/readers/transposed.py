"""Tables on their side (rows are metrics, columns are steps or statistics), and tables of one reading a row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from levelhead.doctor.readers.base import Row, Translator
from levelhead.doctor.readers.places import Place, place_of
from levelhead.doctor.readers.shapes import RULE
from levelhead.doctor.readers.values import is_number


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_GAP = re.compile(r"\s{2,}|\t")
_CORNERS = frozenset(("",)) | _words(
    "metric metrics name names signal signals key keys statistic stat stats quantity measure step steps "
    "iteration iterations iter epoch epochs update updates 指标 指标名 指标名称 项目 项 지표 항목 項目 指標"
)
_TIMES = frozenset(("step", "steps", "iteration", "iterations", "iter", "update", "updates", "global_step"))
_NAMES = frozenset(("metric", "name", "tag", "key", "signal"))
_VALUES = frozenset(("value", "val", "values", "number", "reading", "observed", "result", "值", "数值", "结果", "값"))
_FEWEST_RUNS = 2
_MAX_ROWS = 500
_MAX_COLUMNS = 2000
_MAX_READINGS = 200_000


def cells_of(line: str) -> list[tuple[str, list[str]]]:
    """The ways in which a line may be cut into cells: ``(separator, cells)``."""
    ways = []
    for separator in ("│", "|", "\t", ",", ";", "&"):
        if separator in line:
            bare = line.strip(" \r\n")
            bare = bare.strip(separator) if separator in "|│" else bare
            bare = bare.removesuffix("\\\\") if separator == "&" else bare
            ways.append((separator, [cell.strip(' *`"') for cell in bare.split(separator)]))
    if not ways or "," in line:
        ways.append(("  ", [cell.strip("*` ") for cell in _GAP.split(line.strip())]))
        ways.append((" ", line.split()))
    return ways


class TransposedTable:
    """Reads a table whose first column names metrics and whose other columns are places; rows come when it ends.

    Args:
        translator: Maps the metrics' names.
    """

    def __init__(self, translator: Translator) -> None:
        self._translator = translator
        self._places: list[Place] = []
        self._separator = ""
        self._cells: list[tuple[str, list[str]]] = []
        self._number = 0

    @property
    def open(self) -> bool:
        """Whether a header was found and rows are expected."""
        return bool(self._places)

    def header(self, line: str) -> bool:
        """Take ``line`` as a header if its columns are steps or statistics."""
        if len(line) > 20_000:
            return False
        for separator, cells in cells_of(line):
            if len(cells) <= _MAX_COLUMNS and self._accept(separator, cells, line):
                return True
        return False

    def _accept(self, separator: str, cells: list[str], line: str) -> bool:
        blank = separator in "  " and line[:1].isspace()
        if not blank and (len(cells) < 2 or cells[0].lower() not in _CORNERS):
            return False
        names = cells if blank else cells[1:]
        places = [place_of(cell) for cell in names]
        named = [place for place in places if place is not None]
        useful = [p for p in named if p.statistic or p.step is not None or p.epoch is not None]
        if not useful or 2 * len(named) <= len(names) or (separator == " " and len(named) < len(names)):
            return not useful and self._runs(separator, cells)
        bare = [place.step for place in useful if place.bare and place.step is not None]
        if bare and (len(useful) < 2 or bare != sorted(set(bare)) or (blank and len(bare) < 3)):
            return False
        self._places = [place or Place() for place in places]
        self._separator, self._cells = separator, []
        return True

    def _runs(self, separator: str, cells: list[str]) -> bool:
        """Take columns that are runs: two and more under names of their own."""
        runs = [Place(run=cell) if cell and place_of(cell) is None else Place() for cell in cells[1:]]
        named = [place.run for place in runs if place.run]
        of_values = any(name.lower() in _VALUES or is_number(name) for name in named)
        if separator not in "|│" or cells[0].lower() in _TIMES or len(set(named)) < _FEWEST_RUNS or of_values:
            return False
        self._places, self._separator, self._cells = runs, separator, []
        return True

    def row(self, line: str, number: int) -> bool:
        """Take a line under the header; whether it belongs to the table."""
        self._number = number
        if RULE.match(line) or line.lstrip().startswith(("\\midrule", "\\hline")):
            return True
        n = len(self._places)
        if self._separator in "  ":
            words = line.split()
            name, cells = " ".join(words[:-n]), words[-n:]
        else:
            cut = next((cells for separator, cells in cells_of(line) if separator == self._separator), [])
            name, cells = (cut[0], cut[1:]) if len(cut) == n + 1 else ("", [])
        if not name or len(self._cells) >= _MAX_ROWS or not any(map(is_number, cells)):
            return False
        self._cells.append((name, cells))
        return True

    def finish(self) -> Iterator[Row]:
        """The rows of a table that has ended, one a column."""
        places, cells, self._places, self._cells = self._places, self._cells, [], []
        if not any(self._translator.knows(name) for name, _ in cells):
            return
        for i, place in enumerate(places):
            if place == Place():  # a column of remarks
                continue
            pairs: list[tuple[str, Any]] = [(name, row[i]) for name, row in cells if row[i]]
            row = self._translator.row(pairs, self._number, least=0)
            if row:
                epoch = place.epoch if place.epoch is not None else row.epoch
                yield Row(place.step, row.values, epoch, self._number, place.statistic, run=place.run)


class LongTable:
    """Reads tables of one reading a row: step, metric, value."""

    def __init__(self, translator: Translator) -> None:
        self._translator = translator
        self._columns: tuple[int, int, int] | None = None
        self._separator = ""
        self._width = 0
        self._readings: dict[float, list[tuple[str, Any]]] = {}
        self._count = 0
        self._number = 0

    @property
    def open(self) -> bool:
        """Whether a header was found and rows are expected."""
        return self._columns is not None

    def header(self, line: str) -> bool:
        """Take ``line`` as a header if it names a step, a metric and a value."""
        for separator, cells in cells_of(line) if len(line) < 400 else ():
            lowered = [cell.lower() for cell in cells]
            columns = [
                next((i for i, c in enumerate(lowered) if c in words), -1) for words in (_TIMES, _NAMES, _VALUES)
            ]
            if min(columns) >= 0:
                self._columns = (columns[0], columns[1], columns[2])
                self._separator, self._width = separator, len(cells)
                return True
        return False

    def row(self, line: str, number: int) -> bool:
        """Take a line under the header; whether it belongs to the table."""
        self._number = number
        if RULE.match(line):
            return True
        cells = next((cells for separator, cells in cells_of(line) if separator == self._separator), [])
        if self._columns is None or len(cells) != self._width or self._count >= _MAX_READINGS:
            return False
        step, name, value = (cells[i] for i in self._columns)
        try:
            self._readings.setdefault(float(step), []).append((name, value))
        except ValueError:
            return False
        self._count += 1
        return True

    def finish(self) -> Iterator[Row]:
        """The rows of a table that has ended, one a step."""
        readings, self._readings, self._columns, self._count = self._readings, {}, None, 0
        for step in sorted(readings):
            row = self._translator.row([*readings[step], ("step", step)], self._number, least=0)
            if row:
                yield row
