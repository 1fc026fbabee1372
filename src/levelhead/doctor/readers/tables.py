"""Tables: CSV and TSV, markdown, notebook progress tables, fixed-width prints, HTML, on their side, a reading a row."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from levelhead.doctor.readers.base import CORE, SAMPLE, Row, Translator
from levelhead.doctor.readers.places import FIRST, Place, bare, course, place_of, split_statistic
from levelhead.doctor.readers.shapes import RULE
from levelhead.doctor.readers.values import end_of_span, is_number

_RANGE = re.compile(r"^\s{0,8}\**\s{0,8}(\d{1,15})\s{0,8}[\u2013\u2014-]\s{0,8}(\d{1,15})\s{0,8}\**\s{0,8}$")
_RUN_METRIC = re.compile(r"^(?P<run>.+) - (?P<metric>.+?)(?P<bound>__MIN|__MAX)?$")
_TIME = re.compile(
    r"^(?:check-?points?|ckpts?|calls?|windows?|phases?|batch(?:es)?|.*(?:\b|_)(?:steps?|iter\w*|updates?))\b.*$"
    r"|^(?:阶段|窗口|区间|步数?区间|步段|检查点|구간|스텝|단계)$",
    re.I,
)
"""Headings of a first column that tells when a row was, under a name that is no step's."""
_RUN = re.compile(
    r"^(?:runs?|arms?|methods?|models?|config\w*|variants?|experiments?|exps?|settings?|tasks?|conditions?|systems?|"
    r"strateg(?:y|ies)|algorithms?|versions?|seeds?|lr|learning.?rate|方法|模型|实验|配置|任务|算法|设置|版本|策略|学习率)\b",
    re.I,
)
"""Headings of a first column that names a run a row."""
_WHEN = re.compile(r"(?<!\d)(\d{1,15})\W{0,40}(?:\([^()\d]{1,40}\)\W{0,4})?$")
_SAVED = re.compile(r"^(?:check-?points?|ckpts?)\b", re.I)
_CODE = re.compile(r"`([^`]+)`")
_CELL = re.compile(r"<t[hd][^<>]*>((?:(?!<t[hd]\b).)*?)</t[hd]>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^<>]+>")
_GAP = re.compile(r"\s{2,}|\t")
_MAX_COLUMNS = 2000
_LONGEST_HEADING = 400
_FEWEST_WORDS = 3
_SLASHED = re.compile(
    r"(?:^|[(:\s])(?P<names>[\w.%-]{1,40}(?:\s{1,4}/\s{1,4}[\w.%-]{1,40}){2,20})\s{0,4}\)?\s{0,4}:?\s{0,4}$"
)
"""Names of columns as a person writes them over numbers: ``(step / reward / entropy)``."""
_REMARK = re.compile(r"\s{1,20}(?:<-|<=|#|//|←).*$")
_SCORED = frozenset({"answer", "response", "completion", "output"})
"""Headings of samples that a table of steps may have too, for scores of them."""


def _apart(cells: Sequence[str], parts: Sequence[int]) -> list[str]:
    """Cells that hold several readings (``0.75 / 0.40``) as so many cells; their heading has first words."""
    apart: list[str] = []
    for cell, count in zip(cells, parts, strict=True):
        first, *rest = cell.strip("*` ").split(" / ") if count > 1 else [cell]
        apart += [first, *(first[: first.rfind(" ") + 1] + piece for piece in rest), *[""] * count][:count]
    return apart


def split_cells(line: str, separator: str) -> list[str]:
    """The cells of one table line."""
    if separator in "|│&":
        return [cell.strip() for cell in line.strip().removesuffix("\\\\").strip("|│").split(separator)]
    if separator in ",;\t":
        with suppress(csv.Error, StopIteration):
            return [cell.strip() for cell in next(csv.reader([line], delimiter=separator))]
        return []
    return line.split() if separator == " " else _GAP.split(line.strip())


def cells_of(line: str) -> list[tuple[str, list[str]]]:
    """The ways in which a line may be cut into cells: ``(separator, cells)``."""
    ways = [s for s in ("│", "|", "\t", ",", ";", "&") if s in line]
    ways += ["  ", " "] if not ways or "," in line else []
    return [(s, [cell.strip(' *`"') for cell in split_cells(line, s)]) for s in ways]


class Table:
    """Finds a header, then reads the rows under it.

    Args:
        translator: Maps column names.
        value_name: Raw key for a column called ``Value`` (TensorBoard's CSV keeps the tag in the file name alone).
    """

    def __init__(self, translator: Translator, value_name: str | None = None) -> None:
        self._translator = translator
        self._value_name = value_name
        self._header: list[str | None] = []
        self._parts: list[int] = []
        self._separator = ""
        self._fixed = False
        self._timed = self._runs = False
        self._notebook = False
        self.other_runs: list[str] = []

    @property
    def open(self) -> bool:
        """Whether a header was found and rows are expected."""
        return bool(self._header)

    def close(self) -> None:
        """Forget the header: whatever follows is no longer this table."""
        self._header = []

    def header(self, line: str) -> bool:
        """Take ``line`` as a header if it is one."""
        for separator in [s for s in ("│", "|", "\t", ",", ";", "&", "  ") if s in line.strip("\r\n ")]:
            cells = split_cells(line, separator)
            parts = [len(pieces) if " " in (pieces := cell.split(" / "))[0] else 1 for cell in cells]
            if len(cells) >= 2 and sum(parts) <= _MAX_COLUMNS and self.accept(_apart(cells, parts)):
                self._separator, self._parts = separator, parts
                return True
        words: list[str] = []
        if named := _SLASHED.search(line):
            words = [word.strip() for word in named.group("names").split("/")]
        elif "," not in line and "|" not in line and len(line) < _LONGEST_HEADING:
            words = line.split()
        if len(words) >= _FEWEST_WORDS and self.accept(words):
            self._separator, self._fixed = " ", True
            return True
        return False

    def accept(self, cells: Sequence[str]) -> bool:
        """Take ready-made cells as the header if they name known signals."""
        names = self._names(cells)
        lookup = self._translator.keys.lookup
        summary = any(split_statistic(name)[1] for name in names[1:] if name)
        signals = [lookup(name) or lookup(split_statistic(name)[0]) if name else None for name in names]
        targets = {target.name for target in signals if target}
        useful = targets & CORE or any(t.startswith(("rewards/", "eval/")) for t in targets)
        timed = bool(names[0] and not signals[0] and _TIME.match(names[0]) and "step" not in targets)
        of_sample = {cell.strip("*` ").lower() for cell in cells} & SAMPLE
        stepped = (timed or "step" in targets) and len(targets & CORE) > 1
        if of_sample and not (stepped and of_sample <= _SCORED):
            return False
        if not useful or (len(targets) + timed < 2 and len(cells) > 2) or any(is_number(cell) for cell in cells):
            return False
        self._header, self._fixed, self._timed = names, False, timed
        named = names[0] and _RUN.match(names[0]) and (summary or not signals[0])
        self._runs = bool(named and not targets & {"step", "epoch"})
        if self._timed and names[0] and _SAVED.match(names[0]):
            # Checkpoints are scored when they are done: what their table shows is held out.
            self._header = [f"eval/{name}" if name and name != names[0] else name for name in names]
        self._notebook = any(name and name.lower() == "training loss" for name in names)
        return True

    def _names(self, cells: Sequence[str]) -> list[str | None]:
        """Column names; a W&B panel export keeps one run's columns and drops its ``__MIN`` and ``__MAX``."""
        runs: list[str] = []
        names: list[str | None] = []
        for cell in cells:
            match = _RUN_METRIC.match(cell)
            if match and self._translator.knows(match.group("metric")):
                if match.group("run") not in runs:
                    runs.append(match.group("run"))
                names.append(
                    match.group("metric") if match.group("run") == runs[0] and not match.group("bound") else None
                )
            elif cell.lower() == "value" and self._value_name:
                names.append(self._value_name)
            else:
                names.append(self._name(cell))
        self.other_runs = runs[1:]
        return names

    def _name(self, cell: str) -> str:
        """A heading without its dress; a metric in code type wins over words around it."""
        plain, code = cell.strip("*` "), _CODE.search(cell)
        return code.group(1) if code and not self._translator.knows(plain) else plain

    def row(self, line: str, number: int) -> list[Row] | None:
        """The rows of a line under the header (none for rules); ``None`` for a line that does not belong to the table.

        A line is one row, or several where it tells of several moments of a run.
        """
        if RULE.match(line):
            return []
        cells = _REMARK.sub("", line).split() if self._fixed else split_cells(line, self._separator)
        if len(cells) == len(self._parts) < len(self._header):
            cells = _apart(cells, self._parts)
        if len(cells) == len(self._header) + 1 and self._separator in "  " and (place := place_of(cells[0])):
            # The heading of a column of statistics is blank.
            return self.cells(cells[1:], number, place.statistic) if place.statistic else []
        if len(cells) != len(self._header):
            cells = line.split()
            if len(cells) != len(self._header) or self._separator not in ("  ", "\t"):
                return None
        return self.cells(cells, number)

    def cells(self, cells: Sequence[str], number: int, statistic: str = "") -> list[Row]:
        """The rows of ready-made cells; a first one that names a statistic makes them the whole run's."""
        if self._runs:
            named = [(name, cell) for name, cell in zip(self._header, cells, strict=False) if name and cell]
            rows = (self._translator.row(pairs, number, least=0) for pairs in course(named[1:]))
            return [replace(row, run=cells[0].strip("*` ")) for row in rows if row]
        place = None if self._timed or statistic or not cells else place_of(cells[0])
        nowhere = place is not None and place.step is None and place.epoch is None
        if place and nowhere and not self._translator.knows(self._header[0] or ""):
            if not place.statistic:
                return []
            statistic = place.statistic
        pairs: list[tuple[str, str | float]] = []
        for i, (name, cell) in enumerate(zip(self._header, cells, strict=False)):
            if name is None or not cell:
                continue
            span = _RANGE.match(cell)
            if i == 0 and self._timed:
                when = span.group(2) if span else (match.group(1) if (match := _WHEN.search(cell)) else None)
                if when is None:
                    return []
                pairs.append(("step", when))
            elif span and "step" in name.lower():
                pairs.append((name, span.group(2)))
            elif "step" in name.lower() and cell.endswith("+"):
                pairs.append((name, cell.rstrip("+")))
            elif not (self._notebook and cell == "0" and name.lower() == "entropy"):
                # There an integer 0 is the placeholder for an entropy that was not logged.
                end = end_of_span(cell)
                pairs.append((name, cell if end is None else end))
        row = self._translator.row(pairs, number, least=0)
        if row and statistic:
            return [Row(None, dict(row.values), None, number, statistic)]
        return [row] if row else []


class HtmlTable:
    """The same for HTML tables (saved notebooks), whose cells may stand one a line."""

    def __init__(self, translator: Translator) -> None:
        self._table = Table(translator)
        self._cells: list[str] = []

    def feed(self, line: str, number: int) -> list[Row]:
        """Take the cells of a line; rows come out at ``</tr>`` (or ``</thead>``)."""
        self._cells += [_TAG.sub("", cell).strip() for cell in _CELL.findall(line)][:_MAX_COLUMNS]
        if "</tr" not in line.lower() and "</thead" not in line.lower():
            return []
        cells, self._cells = self._cells, []
        if self._table.open and cells and (rows := self._table.cells(cells, number)):
            return rows
        if len(cells) >= 2:
            self._table.accept(cells)
        return []


_CORNER_WORDS = (
    "metric metrics name names signal signals key keys statistic stat stats quantity measure step steps "
    "iteration iterations iter epoch epochs update updates 指标 指标名 指标名称 项目 项 지표 항목 項目 指標"
)
_CORNERS = frozenset(["", *_CORNER_WORDS.split()])
_TIMES = frozenset(("step", "steps", "iteration", "iterations", "iter", "update", "updates", "global_step"))
_NAMES_OF_SIGNALS = frozenset(("metric", "name", "tag", "key", "signal"))
_VALUES = frozenset(("value", "val", "values", "number", "reading", "observed", "result", "值", "数值", "结果", "값"))
_FEWEST_RUNS = 2
_MAX_ROWS = 500
_MAX_READINGS = 200_000


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
        if not blank and (len(cells) < 2 or cells[0].lower().partition(" (")[0] not in _CORNERS):
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
        before = Place(step=0.0) if any(place.step for place in useful) else None
        self._places = [before if before and p and p.statistic == FIRST else p or Place() for p in places]
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
        if not name or len(self._cells) >= _MAX_ROWS or not any(map(is_number, map(bare, cells))):
            return False
        self._cells.append((name, cells))
        return True

    def finish(self) -> Iterator[Row]:
        """The rows of a table that has ended, one a column."""
        places, cells, self._places, self._cells = self._places, self._cells, [], []
        knows = self._translator.knows
        if not any(knows(name) or knows(split_statistic(name)[0]) for name, _ in cells):
            return
        for i, place in enumerate(places):
            if place == Place():  # a column of remarks
                continue
            pairs: list[tuple[str, Any]] = [(name, row[i]) for name, row in cells if row[i]]
            for moment in course(pairs) if place.run else [pairs]:
                if row := self._translator.row(moment, self._number, least=0):
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
                next((i for i, c in enumerate(lowered) if c in words), -1)
                for words in (_TIMES, _NAMES_OF_SIGNALS, _VALUES)
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
            if row := self._translator.row([*readings[step], ("step", step)], self._number, least=0):
                yield row
