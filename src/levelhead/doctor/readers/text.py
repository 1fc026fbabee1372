"""One reader for every textual log: each line is tried against the shapes that trainers print."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from levelhead.doctor.readers import shapes
from levelhead.doctor.readers.base import Row, Translator, Unread
from levelhead.doctor.readers.lines import Lines
from levelhead.doctor.readers.other_formats import OtherFormats
from levelhead.doctor.readers.prefixes import strip
from levelhead.doctor.readers.statements import Statement, Statements
from levelhead.doctor.readers.tables import HtmlTable, Table
from levelhead.doctor.readers.values import NUMBER

_DIGIT = re.compile(r"\d")
_OPENS = re.compile(r"\{\s*(?:['\"}]|$)")
_BODY = re.compile(r"""\s{0,8}['"][^'"\n]{1,120}['"]\s{0,8}:""")
_BULLET = re.compile(r"^[\s•*\-\u2013·>│|]+")
_INNER = re.compile(r"\{[^{}]*\}")
_RANKED = re.compile(r"(?:perf|rollout|train|step)\s{1,8}(\d{1,15})\s{0,8}:\s*$")
_NUMERIC_LINE = re.compile(r"^\s*[-+\d.\]\[,'\"NnIi]")
_CELLS = re.compile(r"</?t(?:[hdr]|head)\b")
_STEMS = (
    "loss", "rew", "scor", "entrop", "kl", "grad", "clip", "len", "trunc", "std", "ratio", "mismatch", "valid", "acc",
    "corr", "pass", "lr", "learn", "norm", "dead", "group",
    "success", "solve", "advant", "time", "fallback", "outcome", "pg_",
    "奖励", "损失", "熵", "长度", "正确率", "准确率", "截断", "梯度", "学习率", "得分", "标准差",
)  # fmt: skip
"""A line with none of these names no signal that makes a row; most lines of a chatty log are done with that."""
_HEADINGS = ("step", "iter", "epoch", "update", "步")
_MAX_PENDING_LINES = 200
_BOX = re.compile(
    rf"^\s{{0,8}}[│|]\s{{0,40}}(?P<key>[A-Za-z_][\w/.@%-]{{1,80}})\s{{0,80}}[│|]\s{{0,40}}(?P<value>{NUMBER})\s{{0,40}}[│|]\s{{0,8}}$",
    re.IGNORECASE,
)
"""A line of a box that holds one name and one number."""
_FENCE = "```"
_PART = re.compile(r"\s{0,3}(?:#{1,6}\s|```|~~~)")
"""A heading or a fence: what follows belongs to another part of a document."""
_SHORT = 100
"""Characters of a line that holds a step, a name and a number, and little else."""
_MAX_PENDING_CHARS = 1 << 20


class TextReader:
    """Reads dict lines, JSON lines and documents, dashed, piped and loose pairs, blocks, and tables of every kind.

    Args:
        source: Format name; settles ambiguous keys.
        extra: The user's own ``canonical -> raw key`` pairs.
        value_name: Raw key of a CSV column that is only called ``Value``.
    """

    def __init__(self, source: str, extra: Mapping[str, str] | None = None, value_name: str | None = None) -> None:
        self.format = source
        self.unread = Unread()
        self._lines = Lines()
        self._translator = Translator(source, extra)
        self._stems = (*_STEMS, *(key.lower() for key in (extra or {}).values()))
        if value_name and source == "tensorboard-csv":
            self._stems = (*self._stems, "value")
        self._table = Table(self._translator, value_name)
        self._html = HtmlTable(self._translator)
        self._number = 0
        self._bar: float | None = None
        self._printed = False
        self._heading: tuple[str, float] | None = None
        self._block: shapes.Pairs = []
        self._pending: list[str] | None = None
        self._pending_size = 0
        self._pending_lines = 0
        self._outer: shapes.Pairs = []
        self._others = OtherFormats(self._translator)
        self._rows = 0
        self._part = 0
        self._newest: float | None = None
        self._stripped = False
        self._statements = Statements()

    def feed(self, chunk: bytes) -> Iterator[Row]:
        """Rows completed by ``chunk``."""
        for line in self._lines.feed(chunk):
            yield from self._counted(self._line(line))

    def close(self) -> Iterator[Row]:
        """Rows that were waiting for more input; a dict cut at the end of the file loses its last number."""
        for line in self._lines.close():
            yield from self._counted(self._line(line))
        yield from self._counted(self._rest())
        yield from self._counted(self._others.close(spoken=not self._rows))

    @property
    def guesses(self) -> dict[str, tuple[str, float]]:
        """Signals whose key was judged by its words: the key, and how sure that is."""
        return self._translator.guesses

    @property
    def strangers(self) -> dict[str, int]:
        """Keys of numbers that mean no signal, and how often they stood there."""
        return self._translator.strangers

    @property
    def statements(self) -> dict[str, Statement]:
        """Faults that the text names, by finding."""
        return self._statements.found

    def _counted(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            self._rows += 1
            if row.step is None and "group_size" in row.values:
                row = replace(row, step=self._newest)
            self._newest = row.step
            yield replace(row, part=self._part) if self._part else row

    def _rest(self) -> Iterator[Row]:
        if self._pending is not None:
            row = self._dict("".join(self._pending), closed=False)
            self._pending = None
            if row:
                yield row
        block = self._block
        yield from self._flush_block()
        if len(block) == 1 and not self._rows and (row := self._translator.row(block, self._number)):
            yield self._stepped(row)
        if self._table.other_runs:
            self.unread.add(0, f"columns of other runs: {', '.join(self._table.other_runs)}")

    def _line(self, line: str) -> Iterator[Row]:
        self._number += 1
        if "\x1b" in line:
            line = shapes.ANSI.sub("", line)
        self._statements.take(line, self._number)
        if _PART.match(line):
            yield from self._flush_block()
            self._part += 1
        pieces = line.split("\r") if "\r" in line else (line,)
        for piece in pieces:
            if piece:
                yield from self._piece(piece)

    def _piece(self, text: str) -> Iterator[Row]:
        if "┃" in text:
            text = text.replace("┃", "│")
        # Inside a table or a dict only what began behind a prefix is taken from behind one: a cell may look like it.
        if self._stripped or not (self._table.open or self._others.open or self._pending is not None):
            bare = strip(text)
            self._stripped, text = bare is not text, bare
            if not text:
                return
        if self._others.open:
            mine, rows = self._others.inside(text, self._number)
            yield from rows
            if mine:
                return
        if "&" in text and "\\" in text:
            text = text.strip().removesuffix("\\\\").replace("\\_", "_").replace("\\%", "%")
        elif text.startswith("\\") and self._table.open:
            return
        if ("<t" in text or "</t" in text) and _CELLS.search(text):
            yield from self._cells(text)
            return
        if "%|" in text:
            bars = shapes.BAR.findall(text)
            if bars:
                self._bar = float(bars[-1][0])
            if "{" not in text and self._pending is None and "step:" not in text:
                yield from self._postfix(text)
                return
        if self._pending is not None:
            yield from self._continue(text)
            return
        if ("'" in text or '"' in text) and _BODY.search(text):
            unopened = self._unopened(text)
            if unopened is not None:
                yield from unopened
                return
        if "{" in text and (_OPENS.search(text) or ("}" in text and _DIGIT.search(text))):
            yield from self._braces(text)
            return
        if self._table.open:
            mine, row = self._table.row(text, self._number)
            if mine:
                if row:
                    yield self._stepped(row)
                return
            if text.strip() and not text.lstrip().startswith(_FENCE):
                self._table.close()
                text = strip(text)
        yield from self._plain(text)

    def _plain(self, text: str) -> Iterator[Row]:
        """Read a line that belongs to nothing: the head of a table, a heading, or names with numbers."""
        if self._others.start(text):
            yield from self._flush_block()
            return
        lowered = text.lower()
        if not any(stem in lowered for stem in self._stems):
            if "[" not in text or self._others.written(text, self._number, alone=False) is None:
                yield from self._heading_of(text, lowered)
            return
        if not _DIGIT.search(text) and "nan" not in lowered and "inf" not in lowered:
            if len(text) > 3 and self._table.header(text):
                yield from self._flush_block()
                self._part += bool(self._part)
            return
        yield from self._pairs(text)

    def _unopened(self, text: str) -> Iterator[Row] | None:
        """Rows of a dict whose opening brace was not copied along; ``None`` where the text holds none."""
        opening, close = text.find("{"), text.find("}")
        if close > 0 and (opening < 0 or close < opening):
            return self._until(text, close)
        if opening < 0 and close < 0 and _BODY.match(text):
            self._start(text, "")
            return iter(())
        return None

    def _until(self, text: str, close: int) -> Iterator[Row]:
        row = self._dict(text[:close], True)
        if row:
            yield row
        if text[close + 1 :].strip(" ,]"):
            yield from self._piece(text[close + 1 :])

    def _postfix(self, text: str) -> Iterator[Row]:
        """Numbers behind a progress bar: a trainer's only log, or a rounded copy of the rows it prints beside it."""
        bar = shapes.ANY_BAR.search(text)
        if bar is None or self._printed:
            return
        row = self._translator.row(shapes.loose_pairs(text[bar.end() :], self._translator.knows), self._number, least=2)
        if row:
            yield Row(float(bar.group(1)), row.values, row.epoch, row.line)

    def _heading_of(self, text: str, lowered: str) -> Iterator[Row]:
        """A short line that names a step (``Step 12:``) starts a new block."""
        if len(text) < 200 and any(word in lowered for word in _HEADINGS):
            mark = shapes.step_mark(text)
            if mark:
                yield from self._flush_block()
                self._heading = mark

    def _cells(self, text: str) -> Iterator[Row]:
        row = self._html.feed(text, self._number)
        if row:
            yield self._stepped(row)

    def _pairs(self, text: str) -> Iterator[Row]:
        if "step:" in text:
            pairs = shapes.dashed_pairs(text)
            if pairs is not None:
                row = self._translator.row(pairs, self._number)
                if row:
                    yield from self._flush_block()
                    yield row
                return
        if ("," in text or "|" in text or "\t" in text or "  " in text or "&" in text) and self._table.header(text):
            yield from self._flush_block()
            return
        if "|" in text:
            piped = shapes.piped_pairs(text)
            row = self._translator.row(piped, self._number) if piped else None
            if row:
                yield from self._flush_block()
                yield self._stepped(row)
                return
        yield from self._loose(text)

    def _loose(self, text: str) -> Iterator[Row]:
        if "**" in text or "`" in text:
            text = text.replace("**", "").replace("`", "")
        if box := _BOX.match(text):
            text = f"{box.group('key')}: {box.group('value')}"
        mark = shapes.step_mark(text)
        alone = mark is None and self._heading is None and self._bar is None
        written = self._others.written(text, self._number, alone)
        if written is not None:
            yield from self._flush_block()
            yield from written
            return
        pairs = (
            shapes.loose_pairs(text, self._translator.knows) if "=" in text or ":" in text or "\uff1a" in text else []
        )
        signal_pairs = [pair for pair in pairs if self._translator.knows(pair[0])]
        values = {self._canonical(key) for key, _ in signal_pairs} - {"step", "epoch"}
        listed = shapes.listed_pairs(text) if mark and len(values) < 3 else []
        if sum(self._translator.knows(key) for key, _ in listed) > len(signal_pairs):
            row = self._translator.row(listed, self._number)
            if row:
                yield from self._flush_block()
                yield row
                return
        if not values:
            words = shapes.word_pairs(text) if mark else []
            row = self._translator.row([*words, mark], self._number, least=2) if mark else None
            if row:
                yield from self._flush_block()
                yield row
            elif text.count(" ") > 3 and not self._rows and self._others.say(text, self._number):
                return
            elif mark and len(text) < 200:
                yield from self._flush_block()
                self._heading = mark
            return
        least = 1 if mark and ("=" in text or len(text) < _SHORT) else 2
        row = self._translator.row(signal_pairs, self._number, least)
        if row and (len(values) > 1 or mark):
            yield from self._flush_block()
            yield self._stepped(row)
            self._heading = mark if len(values) == 1 else None
        elif len(values) == 1 and len(_BULLET.sub("", text)) < 120:
            if values & {self._canonical(key) for key, _ in self._block}:
                yield from self._flush_block()
            self._block += [pair for pair in signal_pairs if self._canonical(pair[0]) in values][:1]

    def _canonical(self, key: str) -> str:
        target = self._translator.keys.lookup(key)
        return target.name if target else ""

    def _flush_block(self) -> Iterator[Row]:
        block, self._block = self._block, []
        if len(block) >= 2:
            row = self._translator.row(block, self._number, least=2)
            if row:
                yield self._stepped(row)

    def _stepped(self, row: Row) -> Row:
        """The row with the step of the heading above it or of the progress bar beside it, where it has none."""
        heading, self._heading = self._heading, None
        if row.step is not None:
            return row
        if heading and heading[0] == "step":
            return Row(heading[1], row.values, row.epoch, row.line)
        if self._bar is not None:
            step, self._bar = self._bar, None
            return Row(step, row.values, row.epoch, row.line)
        if heading and row.epoch is None:
            return Row(None, row.values, heading[1], row.line)
        return row

    def _braces(self, text: str) -> Iterator[Row]:
        stripped = text.strip().rstrip(",")
        if stripped[0] in "{[" and stripped[-1] in "}]":
            documents = shapes.json_rows(stripped)
            if documents is not None:
                for pairs in documents:
                    row = self._translator.row(pairs, self._number)
                    if row:
                        yield self._stepped(row)
                return
        start, end = text.find("{"), text.rfind("}")
        if end > start:
            rows = [row for inner in _INNER.findall(text) if (row := self._dict(inner[1:-1], True, text[:start]))]
            if not rows:
                whole = self._dict(text[start + 1 : end], True, text[:start])
                rows = [whole] if whole else []
            yield from rows
        opening = text.rfind("{")
        if opening > end and _OPENS.match(text, opening):
            self._start(text[opening + 1 :], text[:opening])

    def _start(self, text: str, prefix: str) -> None:
        self._pending = [text]
        self._pending_size, self._pending_lines = len(text), 0
        mark = shapes.step_mark(prefix)
        if mark:
            self._heading = mark

    def _continue(self, text: str) -> Iterator[Row]:
        """More of a dict or JSON document that was wrapped over lines."""
        pending = self._pending
        if pending is None:
            return
        close, opening = text.find("}"), text.find("{")
        if opening >= 0 and (close < 0 or opening < close):
            before = "".join(pending)
            self._pending = None
            outer, _ = shapes.dict_pairs(before)
            row = self._dict(before, closed=False) if len(pending) <= 2 else None
            if row:
                yield row
            self._outer = [pair for pair in outer if self._canonical(pair[0]) == "step"][-1:]
            yield from self._piece(text[opening:])
            return
        if close >= 0:
            self._pending = None
            whole = "".join(pending) + text[:close]
            documents = shapes.json_rows("{" + whole + "}") if "[" in whole else None
            if documents and len(documents) > 1:
                yield from (row for pairs in documents if (row := self._translator.row(pairs, self._number)))
            else:
                row = self._dict(whole, True)
                if row:
                    yield row
            if text[close + 1 :].strip(" ,]"):
                yield from self._piece(text[close + 1 :])
            return
        # A terminal wraps anywhere, inside a number too: the pieces are joined as they are.
        pending.append(text)
        self._pending_size += len(text)
        self._pending_lines += not _NUMERIC_LINE.match(text)
        if self._pending_lines > _MAX_PENDING_LINES or self._pending_size > _MAX_PENDING_CHARS:
            self._pending = None
            self.unread.add(self._number, "a brace that was never closed")

    def _dict(self, body: str, closed: bool, prefix: str = "") -> Row | None:
        pairs, cut = shapes.dict_pairs(body, closed)
        row = self._translator.row(pairs, self._number)
        if row is None:
            return None
        self._printed = True
        if cut:
            self.unread.add(
                self._number, "the line ends in the middle of a number; that number was left out", body[-80:]
            )
        if row.step is None:
            ranked = _RANKED.search(prefix)
            mark = ("step", float(ranked.group(1))) if ranked else shapes.step_mark(prefix)
            if mark and mark[0] == "step":
                return Row(mark[1], row.values, row.epoch, row.line)
            if self._outer:
                inherited = self._translator.row([*pairs, *self._outer], self._number)
                self._outer = []
                return inherited
        return self._stepped(row)
