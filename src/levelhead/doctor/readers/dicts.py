"""Dictionaries and JSON documents in a log: on one line, wrapped over many, cut at either end."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from levelhead.doctor.readers import shapes
from levelhead.doctor.readers.base import Row, Translator, Unread
from levelhead.doctor.readers.places import Steps
from levelhead.message import Message

_DIGIT = re.compile(r"\d")
_OPENS = re.compile(r"\{\s*(?:['\"}]|$)")
_BODY = re.compile(r"""\s{0,8}['"][^'"\n]{1,120}['"]\s{0,8}:""")
_INNER = re.compile(r"\{[^{}]*\}")
_RANKED = re.compile(r"(?:perf|rollout|train|step)\s{1,8}(\d{1,15})\s{0,8}:\s*$")
_NUMERIC_LINE = re.compile(r"^\s*[-+\d.\]\[,'\"NnIi]")
_MAX_LINES = 200
_MAX_CHARS = 1 << 20
_NEVER_CLOSED = Message("a brace that was never closed", "有一个花括号始终没有闭合")
_CUT_NUMBER = Message(
    "the line ends in the middle of a number; that number was left out",
    "这一行在一个数字中间结束\uff0c该数字未采用",
)


class Dicts:
    """Takes the lines of dictionaries.

    Args:
        translator: Maps keys.
        unread: Receives what is cut.
        steps: Places the rows.
        again: Reads the rest of a line behind a closing brace.
    """

    def __init__(self, translator: Translator, unread: Unread, steps: Steps, again: Callable[[str], list[Row]]) -> None:
        self._translator = translator
        self._unread = unread
        self._steps = steps
        self._again = again
        self._pending: list[str] | None = None
        self._size = self._lines = self._number = 0
        self._outer: shapes.Pairs = []
        self.printed = False
        """Whether a dictionary has made a row: numbers behind a progress bar are then a copy."""

    @property
    def open(self) -> bool:
        """Whether a brace waits for its end."""
        return self._pending is not None

    def take(self, text: str, number: int) -> list[Row] | None:
        """The rows that a line completes; ``None`` where nothing of a dictionary stands in it."""
        self._number = number
        if self._pending is not None:
            return self._continue(self._pending, text)
        if ("'" in text or '"' in text) and _BODY.search(text) and (rows := self._unopened(text)) is not None:
            return rows
        if "{" in text and (_OPENS.search(text) or ("}" in text and _DIGIT.search(text))):
            return self._braces(text)
        return None

    def close(self) -> list[Row]:
        """The row of a dictionary that the file cuts: it loses its last number."""
        pending, self._pending = self._pending, None
        return [] if pending is None else self._dict("".join(pending), closed=False)

    def _unopened(self, text: str) -> list[Row] | None:
        """Rows of a dictionary whose opening brace was not copied along; ``None`` where the text holds none."""
        opening, close = text.find("{"), text.find("}")
        if close > 0 and (opening < 0 or close < opening):
            return [*self._dict(text[:close]), *self._rest(text, close)]
        if opening < 0 and close < 0 and _BODY.match(text):
            self._start(text, "")
            return []
        return None

    def _rest(self, text: str, close: int) -> list[Row]:
        rest = text[close + 1 :]
        return self._again(rest) if rest.strip(" ,]") else []

    def _braces(self, text: str) -> list[Row]:
        stripped = text.strip().rstrip(",")
        if stripped[0] in "{[" and stripped[-1] in "}]" and (documents := shapes.json_rows(stripped)) is not None:
            return self._rows(documents)
        start, end = text.find("{"), text.rfind("}")
        rows: list[Row] = []
        if end > start:
            rows = [row for inner in _INNER.findall(text) for row in self._dict(inner[1:-1], prefix=text[:start])]
            rows = rows or self._dict(text[start + 1 : end], prefix=text[:start])
        opening = text.rfind("{")
        if opening > end and _OPENS.match(text, opening):
            self._start(text[opening + 1 :], text[:opening])
        return rows

    def _rows(self, documents: list[shapes.Pairs]) -> list[Row]:
        return [self._steps.place(row) for pairs in documents if (row := self._translator.row(pairs, self._number))]

    def _start(self, text: str, prefix: str) -> None:
        self._pending, self._size, self._lines = [text], len(text), 0
        self._steps.heading = shapes.step_mark(prefix) or self._steps.heading

    def _continue(self, pending: list[str], text: str) -> list[Row]:
        close, opening = text.find("}"), text.find("{")
        if opening >= 0 and (close < 0 or opening < close):
            before, self._pending = "".join(pending), None
            outer, _ = shapes.dict_pairs(before)
            rows = self._dict(before, closed=False) if len(pending) <= 2 else []
            steps = [pair for pair in outer if self._translator.name(pair[0]) == "step"]
            self._outer = steps[-1:]
            return [*rows, *self._again(text[opening:])]
        if close >= 0:
            self._pending = None
            whole = "".join(pending) + text[:close]
            documents = shapes.json_rows("{" + whole + "}") if "[" in whole else None
            rows = self._rows(documents) if documents and len(documents) > 1 else self._dict(whole)
            return [*rows, *self._rest(text, close)]
        # A terminal wraps anywhere, inside a number too: the pieces are joined as they are.
        pending.append(text)
        self._size += len(text)
        self._lines += not _NUMERIC_LINE.match(text)
        if self._lines > _MAX_LINES or self._size > _MAX_CHARS:
            self._pending = None
            self._unread.add(self._number, _NEVER_CLOSED())
        return []

    def _dict(self, body: str, closed: bool = True, prefix: str = "") -> list[Row]:
        pairs, cut = shapes.dict_pairs(body, closed)
        row = self._translator.row(pairs, self._number)
        if row is None:
            return []
        self.printed = True
        if cut:
            self._unread.add(self._number, _CUT_NUMBER(), body[-80:])
        if row.step is None:
            ranked = _RANKED.search(prefix)
            mark = ("step", float(ranked.group(1))) if ranked else shapes.step_mark(prefix)
            if mark and mark[0] == "step":
                return [replace(row, step=mark[1])]
            if self._outer:
                inherited = self._translator.row([*pairs, *self._outer], self._number)
                self._outer = []
                return [inherited] if inherited else []
        return [self._steps.place(row)]
