"""Tables: CSV and TSV, markdown, notebook progress tables, fixed-width prints, HTML."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import replace

from levelhead.doctor.readers.base import CORE, SAMPLE, Row, Translator
from levelhead.doctor.readers.places import place_of
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
    r"strateg(?:y|ies)|algorithms?|versions?|方法|模型|实验|配置|任务|算法|设置|版本|策略)\b",
    re.I,
)
"""Headings of a first column that names a run a row."""
_WHEN = re.compile(r"(?<!\d)(\d{1,15})\W{0,40}(?:\([^()\d]{1,40}\)\W{0,4})?$")
_SAVED = re.compile(r"^(?:check-?points?|ckpts?)\b", re.I)
_CODE = re.compile(r"`([^`]+)`")
_CELL = re.compile(r"<t[hd][^<>]*>((?:(?!<t[hd]\b).)*?)</t[hd]>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^<>]+>")
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


def split_cells(line: str, separator: str) -> list[str]:
    """The cells of one table line."""
    if separator in "|│&":
        return [cell.strip() for cell in line.strip().strip("|│").split(separator)]
    if separator in ",;\t":
        try:
            return [cell.strip() for cell in next(csv.reader([line], delimiter=separator))]
        except (csv.Error, StopIteration):
            return []
    return re.split(r"\s{2,}|\t", line.strip())


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
        for separator in self._separators(line):
            cells = split_cells(line, separator)
            if 2 <= len(cells) <= _MAX_COLUMNS and self.accept(cells):
                self._separator = separator
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

    def _separators(self, line: str) -> list[str]:
        return [s for s in ("│", "|", "\t", ",", ";", "&") if s in line] + (["  "] if "  " in line.strip() else [])

    def accept(self, cells: Sequence[str]) -> bool:
        """Take ready-made cells as the header if they name known signals."""
        names = self._names(cells)
        signals = [self._translator.keys.lookup(name) if name else None for name in names]
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
        self._runs = bool(names[0] and not signals[0] and _RUN.match(names[0]) and not targets & {"step", "epoch"})
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

    def row(self, line: str, number: int) -> tuple[bool, Row | None]:
        """Read a line under the header.

        Returns:
            Whether the line belongs to the table, and its row (``None`` for rules and rows without a metric).
        """
        if RULE.match(line):
            return True, None
        cells = _REMARK.sub("", line).split() if self._fixed else split_cells(line, self._separator)
        if len(cells) == len(self._header) + 1 and self._separator in "  " and (place := place_of(cells[0])):
            # The heading of a column of statistics is blank.
            return True, self.cells(cells[1:], number, place.statistic) if place.statistic else None
        if len(cells) != len(self._header):
            words = line.split()
            if len(words) == len(self._header) and self._separator in ("  ", "\t"):
                cells = words
            else:
                return False, None
        return True, self.cells(cells, number)

    def cells(self, cells: Sequence[str], number: int, statistic: str = "") -> Row | None:
        """The row of ready-made cells; a first one that names a statistic makes it the whole run's."""
        place = None if self._timed or statistic or not cells else place_of(cells[0])
        if (
            place is not None
            and place.step is None
            and place.epoch is None
            and not self._translator.knows(self._header[0] or "")
        ):
            if not place.statistic:
                return None
            statistic = place.statistic
        pairs: list[tuple[str, str | float]] = []
        for i, (name, cell) in enumerate(zip(self._header, cells, strict=False)):
            if name is None or not cell:
                continue
            span = _RANGE.match(cell)
            if i == 0 and self._timed:
                when = span.group(2) if span else (match.group(1) if (match := _WHEN.search(cell)) else None)
                if when is None:
                    return None
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
            return Row(None, dict(row.values), None, number, statistic)
        return replace(row, run=cells[0].strip("*` ")) if row and self._runs else row


class HtmlTable:
    """The same for HTML tables (saved notebooks), whose cells may stand one a line."""

    def __init__(self, translator: Translator) -> None:
        self._table = Table(translator)
        self._cells: list[str] = []

    def feed(self, line: str, number: int) -> Row | None:
        """Take the cells of a line; a row comes out at ``</tr>`` (or ``</thead>``)."""
        self._cells += [_TAG.sub("", cell).strip() for cell in _CELL.findall(line)][:_MAX_COLUMNS]
        if "</tr" not in line.lower() and "</thead" not in line.lower():
            return None
        cells, self._cells = self._cells, []
        if self._table.open and cells:
            row = self._table.cells(cells, number)
            if row:
                return row
        if len(cells) >= 2:
            self._table.accept(cells)
        return None
