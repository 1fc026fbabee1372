"""One reader for every textual log: each line is offered to an ordered table of the shapes that logs are written in.

There is no reader for each trainer: the format's name only settles keys that mean two things and the words of remedies;
any file may hold any shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from levelhead.doctor.readers import shapes
from levelhead.doctor.readers.base import Row, Translator, Unread
from levelhead.doctor.readers.lines import Lines, strip
from levelhead.doctor.readers.places import Steps
from levelhead.doctor.readers.prose import Statement, Statements, sentences
from levelhead.doctor.readers.sequences import Sequences
from levelhead.doctor.readers.shapes import Dicts
from levelhead.doctor.readers.tables import HtmlTable, LongTable, Table, TransposedTable
from levelhead.doctor.readers.values import is_number, parse_number
from levelhead.message import Message

_DIGIT = re.compile(r"\d")
_BULLET = re.compile(r"^[\s•*\-\u2013·>│|]+")
_CELLS = re.compile(r"</?t(?:[hdr]|head)\b")
_STEMS = (
    "loss", "rew", "scor", "entrop", "kl", "grad", "clip", "len", "trunc", "std", "ratio", "mismatch", "valid", "acc",
    "corr", "pass", "lr", "learn", "norm", "dead", "group",
    "success", "solve", "advant", "time", "fallback", "outcome", "pg_",
    "奖励", "损失", "熵", "长度", "正确率", "准确率", "截断", "梯度", "学习率", "得分", "标准差",
)  # fmt: skip
"""A line with none of these names no signal that makes a row; most lines of a chatty log are done with that."""
_HEADINGS = ("step", "iter", "epoch", "update", "步")
_SIDEWAYS = re.compile(
    r"^(?:\s*[|│]|\s{2,}\S|\t|,|\**(?:metric|name|signal|key|stat|quantity|measure|step|iter|epoch|update|tag|run|指标))",
    re.I,
)
"""How the head of a table begins whose rows are metrics."""
_BOX = re.compile(
    r"^\s{0,8}[│|]\s{0,40}(?P<key>[^\W\d][^│|]{1,80}?)\s{0,80}[│|]\s{0,40}(?P<value>[^│|]{1,40}?)\s{0,40}[│|]\s{0,8}$"
)
"""A line of a box that holds one name and one number."""
_END_OF_LATEX = re.compile(r"\\\\\s{0,8}(?:\\[a-z]{1,20}\s{0,8}){0,4}$")
_COMMAND = re.compile(r"\\[a-z]{1,20}\{([^{}]{0,200})\}")
_FENCE = "```"
_PART = re.compile(r"\s{0,3}(?:#{1,6}\s|```|~~~)")
"""A heading or a fence: what follows belongs to another part of a document."""
_SHORT = 100
"""Characters of a line that holds a step, a name and a number, and little else."""
_LONGEST_HEADING = 200
_LONGEST_IN_A_BLOCK = 120
_MAX_SAID = 5000
_MOST_INSIDE = 50
"""Closing braces of a line behind which it is read on, one within the other."""
_BRACES = Message("more closing braces in a line than are followed", "一行里的右花括号太多，其余未读")
_OTHER_RUNS = Message("columns of other runs: {names}", "其他训练的列\uff1a{names}")


class TextReader:
    """Reads dictionaries, JSON documents, tables, lists, blocks, loose pairs and sentences, in any order.

    Args:
        source: Format name; settles ambiguous keys.
        extra: The user's own ``canonical -> raw key`` pairs.
        value_name: Raw key of a CSV column that is only called ``Value``.
    """

    def __init__(self, source: str, extra: Mapping[str, str] | None = None, value_name: str | None = None) -> None:
        self.format = source
        self.unread = Unread()
        self._lines = Lines()
        self._translator = translator = Translator(source, extra)
        self._stems = (*_STEMS, *(key.lower() for key in (extra or {}).values()))
        if value_name and source == "tensorboard-csv":
            self._stems = (*self._stems, "value")
        self._steps = Steps()
        self._dicts = Dicts(translator, self.unread, self._steps, self._read_rest)
        self._table, self._html = Table(translator, value_name), HtmlTable(translator)
        self._sideways, self._long = TransposedTable(translator), LongTable(translator)
        self._sequences = Sequences(translator)
        self._statements = Statements()
        self._block: shapes.Pairs = []
        self._said: list[Row] = []
        self._number = self._rows = self._part = self._inside = 0
        self._newest: float | None = None
        self._stripped = False

    def feed(self, chunk: bytes) -> Iterator[Row]:
        """Yield the rows that ``chunk`` completes."""
        for line in self._lines.feed(chunk):
            yield from self._counted(self._line(line))

    def close(self) -> Iterator[Row]:
        """Rows that were waiting for more input; what sentences say counts in a text that holds nothing else."""
        for line in self._lines.close():
            yield from self._counted(self._line(line))
        block = self._block
        yield from self._counted(iter([*self._dicts.close(), *self._end_of_block()]))
        if len(block) == 1 and not self._rows and (row := self._translator.row(block, self._number)):
            yield from self._counted(iter([self._steps.place(row)]))
        if self._table.other_runs:
            self.unread.add(0, _OTHER_RUNS(names=", ".join(self._table.other_runs)))
        waiting = [*self._sideways.finish(), *self._long.finish(), *self._sequences.finish()]
        yield from self._counted(iter(waiting if self._rows else [*waiting, *self._said]))

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
        return self._statements.by_code

    def _counted(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            self._rows += 1
            if row.step is None and "group_size" in row.values:
                row = replace(row, step=self._newest)
            self._newest = row.step
            yield replace(row, part=self._part) if self._part else row

    def _line(self, line: str) -> Iterator[Row]:
        self._number += 1
        if "\x1b" in line:
            line = shapes.ANSI.sub("", line)
        self._statements.take(line, self._number)
        if _PART.match(line):
            yield from [*self._dicts.close(), *self._end_of_block()]
            self._part += 1
        for piece in line.split("\r") if "\r" in line else (line,):
            if piece:
                yield from self._piece(piece)

    def _read_rest(self, text: str) -> list[Row]:
        """Read what stands behind a closing brace, and behind the next in there."""
        if self._inside == _MOST_INSIDE:
            self.unread.add(self._number, _BRACES(), text)
            return []
        self._inside += 1
        try:
            return list(self._piece(text))
        finally:
            self._inside -= 1

    def _piece(self, text: str) -> Iterator[Row]:
        """Offer a line to the shapes, in their order."""
        if "┃" in text:
            text = text.replace("┃", "│")
        # Inside a table or a dict only what began behind a prefix is taken from behind one: a cell may look like it.
        if self._stripped or not (
            self._table.open or self._sideways.open or self._long.open or self._sequences.open or self._dicts.open
        ):
            bare = strip(text)
            self._stripped, text = bare is not text, bare
            if not text:
                return
        for mark, shape in _SHAPES:
            if mark in text and (rows := shape(self, text)) is not None:
                yield from rows
                return

    def _end_of_block(self) -> list[Row]:
        """The row of the lines of one name and one number each that stand together."""
        block, self._block = self._block, []
        row = self._translator.row(block, self._number, least=2) if len(block) >= 2 else None
        return [self._steps.place(row)] if row else []

    # The shapes: each returns the rows of a line that it takes, and None for a line that is another's.

    def _sideways_rows(self, text: str) -> list[Row] | None:
        for table in (self._sideways, self._long):
            if table.open:
                if table.row(text, self._number):
                    return []
                if text.strip() or table is self._long:
                    return [*table.finish(), *self._piece(text)]
                return None
        return None

    def _listed_rows(self, text: str) -> list[Row] | None:
        if not self._sequences.open or not text.strip():
            return None
        more = "[" in text or "→" in text or ">" in text
        if more and self._sequences.take(text, self._number, alone=True) == []:
            return []
        return [*self._sequences.finish(), *self._piece(text)]

    def _latex(self, text: str) -> list[Row] | None:
        end = _END_OF_LATEX.search(text) if "&" in text else None
        if end:
            return list(self._piece(_COMMAND.sub(r"\1", text[: end.start()].strip()).replace("\\", "")))
        return [] if text.startswith("\\") and self._table.open else None

    def _markup(self, text: str) -> list[Row] | None:
        if not ("<t" in text or "</t" in text) or not _CELLS.search(text):
            return None
        return [self._steps.place(row) for row in self._html.feed(text, self._number)]

    def _progress_bar(self, text: str) -> list[Row] | None:
        """Numbers behind a progress bar: a trainer's only log, or a rounded copy of the rows it prints beside it."""
        if bars := shapes.BAR.findall(text):
            self._steps.bar = float(bars[-1][0])
        if "{" in text or self._dicts.open or "step:" in text:
            return None
        bar = shapes.ANY_BAR.search(text)
        if bar is None or self._dicts.printed:
            return []
        row = self._translator.row(shapes.loose_pairs(text[bar.end() :], self._translator.knows), self._number, least=2)
        return [replace(row, step=float(bar.group(1)))] if row else []

    def _dictionary(self, text: str) -> list[Row] | None:
        return self._dicts.take(text, self._number)

    def _table_row(self, text: str) -> list[Row] | None:
        if not self._table.open:
            return None
        rows = self._table.row(text, self._number)
        if rows is not None:
            return [self._steps.place(row) for row in rows]
        if not text.strip() or text.lstrip().startswith(_FENCE):
            return None
        self._table.close()
        return list(self._piece(text))

    def _sideways_head(self, text: str) -> list[Row] | None:
        if ":" in text or "=" in text or "{" in text or not _SIDEWAYS.match(text):
            return None
        return self._end_of_block() if self._long.header(text) or self._sideways.header(text) else None

    def _no_signal(self, text: str) -> list[Row] | None:
        """A line that names no signal: a list of steps, a heading that names one, or none of a log's business."""
        lowered = text.lower()
        if any(stem in lowered for stem in self._stems):
            return None
        if "[" in text and (rows := self._sequences.take(text, self._number, alone=False)) is not None:
            return rows
        named = len(text) < _LONGEST_HEADING and any(word in lowered for word in _HEADINGS)
        return self._begin(shapes.step_mark(text)) if named else []

    def _begin(self, mark: tuple[str, float] | None) -> list[Row]:
        """A line that names a step and little else (``Step 12:``) starts a new block."""
        if mark is None:
            return []
        rows = self._end_of_block()
        self._steps.heading = mark
        return rows

    def _table_head(self, text: str) -> list[Row] | None:
        if not _DIGIT.search(text) and "nan" not in (lowered := text.lower()) and "inf" not in lowered:
            if len(text) <= 3 or not self._table.header(text):
                return []
            self._part += bool(self._part)
            return self._end_of_block()
        split = any(mark in text for mark in (",", "|", "\t", "  ", "&"))
        return self._end_of_block() if split and self._table.header(text) else None

    def _dashed(self, text: str) -> list[Row] | None:
        pairs = shapes.dashed_pairs(text)
        if pairs is None:
            return None
        row = self._translator.row(pairs, self._number)
        return [*self._end_of_block(), row] if row else []

    def _piped(self, text: str) -> list[Row] | None:
        pairs = shapes.piped_pairs(text)
        row = self._translator.row(pairs, self._number) if pairs else None
        return [*self._end_of_block(), self._steps.place(row)] if row else None

    def _loose(self, text: str) -> list[Row]:
        """Names with numbers: several behind one name, pairs, words between commas, a sentence, a line of a block."""
        if "**" in text or "`" in text:
            text = text.replace("**", "").replace("`", "")
        if (box := _BOX.match(text)) and is_number(box.group("value")):
            text = f"{box.group('key')}: {parse_number(box.group('value'))}"
        mark = shapes.step_mark(text)
        alone = mark is None and self._steps.heading is None and self._steps.bar is None
        if (rows := self._sequences.take(text, self._number, alone)) is not None:
            return [*self._end_of_block(), *rows]
        paired = "=" in text or ":" in text or "\uff1a" in text
        pairs = shapes.loose_pairs(text, self._translator.knows) if paired else []
        pairs = [pair for pair in pairs if self._translator.knows(pair[0])]
        names = {self._translator.name(key) for key, _ in pairs} - {"step", "epoch"}
        listed = shapes.listed_pairs(text) if mark and len(names) < 3 else []
        if sum(self._translator.knows(key) for key, _ in listed) > len(pairs):
            row = self._translator.row(listed, self._number)
            if row:
                return [*self._end_of_block(), row]
        if not names:
            return self._words(text, mark)
        least = 1 if mark and ("=" in text or len(text) < _SHORT) else 2
        row = self._translator.row(pairs, self._number, least)
        if row and (len(names) > 1 or mark):
            rows = [*self._end_of_block(), self._steps.place(row)]
            self._steps.heading = mark if len(names) == 1 else None
            return rows
        return self._block_line(text, pairs, names) if len(names) == 1 else []

    def _words(self, text: str, mark: tuple[str, float] | None) -> list[Row]:
        """A step with words and their numbers, a sentence, or a heading."""
        row = self._translator.row([*shapes.word_pairs(text), mark], self._number, least=2) if mark else None
        if row:
            return [*self._end_of_block(), row]
        if text.count(" ") > 3 and not self._rows and len(self._said) < _MAX_SAID:
            statements = sentences(text, self._number, self._translator)
            self._said += statements
            if statements:
                return []
        return self._begin(mark) if len(text) < _LONGEST_HEADING else []

    def _block_line(self, text: str, pairs: shapes.Pairs, names: set[str]) -> list[Row]:
        if len(_BULLET.sub("", text)) >= _LONGEST_IN_A_BLOCK:
            return []
        again = names & {self._translator.name(key) for key, _ in self._block}
        rows = self._end_of_block() if again else []
        self._block += [pair for pair in pairs if self._translator.name(pair[0]) in names][:1]
        return rows


_SHAPES: tuple[tuple[str, Callable[[TextReader, str], list[Row] | None]], ...] = (
    ("", TextReader._sideways_rows),
    ("", TextReader._listed_rows),
    ("\\", TextReader._latex),
    ("<", TextReader._markup),
    ("%|", TextReader._progress_bar),
    ("", TextReader._dictionary),
    ("", TextReader._table_row),
    ("", TextReader._sideways_head),
    ("", TextReader._no_signal),
    ("step:", TextReader._dashed),
    ("", TextReader._table_head),
    ("|", TextReader._piped),
    ("", TextReader._loose),
)
"""The shapes of a line, each behind a mark that a line of it holds, in the order in which it is offered to them: what
is open first, then the strictest.  ``_no_signal`` ends lines that hold no name of a metric, so that what follows is not
tried on them."""
