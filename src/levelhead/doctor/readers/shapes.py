"""Line shapes: key-value pairs, and dictionaries on one line, wrapped over many, cut at either end."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from levelhead.doctor.readers.base import Row, Translator, Unread
from levelhead.doctor.readers.places import Steps
from levelhead.doctor.readers.values import NUMBER, flatten
from levelhead.message import Message

Pairs = list[tuple[str, Any]]

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
RULE = re.compile(r"^[\s|+\-=:_\u2500-\u257f]+$")
"""A line of a table that only divides."""
BAR = re.compile(r"^\s*\d{1,3}%\|[^|]*\|\s{0,8}(\d{1,15})/(\d{1,15})\s{0,8}\[")
"""A bare tqdm bar (one with a description belongs to something else): count and total."""

ANY_BAR = re.compile(r"\d{1,3}%\|[^|]{0,400}\|\s{0,8}(\d{1,15})/\d{1,15}\s{0,8}\[")
"""Any tqdm bar: its count."""

_DICT_PAIR = re.compile(
    r"""['"](?P<key>[^'"\n]{1,120})['"]\s{0,40}:\s{0,40}(?P<value>'[^']*'|"[^"]*"|[^,'"{}\[\]]+|\[[^\[\]]{0,64}\])"""
)
_VALUE = rf"(?P<value>{NUMBER}(?:\s{{0,4}}(?:±|\+/-|\+-)\s{{0,4}}{NUMBER})?\s{{0,4}}(?:%|s\b|ms\b)?)"
_EQUALS = re.compile(
    rf"(?<![A-Za-z_])(?P<key>[A-Za-z_|\u4e00-\u9fff][\w/%.@|\-]{{0,120}})\s{{0,8}}=\s{{0,8}}{_VALUE}", re.IGNORECASE
)
_COLON = re.compile(
    rf"(?<![A-Za-z_])(?P<key>[A-Za-z_\u4e00-\u9fff][\w/%.@\u4e00-\u9fff\- ]{{0,60}}?)\s{{0,8}}[:\uff1a]\s{{0,8}}"
    rf"{_VALUE}(?=[\s,;|)\]}}\uff0c\u3002]|$)",
    re.IGNORECASE,
)
_SEGMENT = re.compile(rf"^[^\w]*(?P<key>[A-Za-z_][\w/%.@\- ]{{0,120}}?)\s{{0,8}}[:=]?\s{{1,8}}{_VALUE}", re.IGNORECASE)
_WORDS = re.compile(
    rf"(?<![A-Za-z_])(?P<key>[A-Za-z_][\w/%.\-]{{0,120}})\s{{1,8}}{_VALUE}(?=[\s,;|)\]]|$)", re.IGNORECASE
)
_STEP_MARK = re.compile(
    r"(?:^|[\s\[({>#=*-])(?P<kind>global[ _]step|step|iteration|iter|epoch|update|第|步骤)\s{0,8}[:=#]?\s{0,8}\[?"
    r"(?P<step>\d{1,15}(?!\d)(?:\.\d{1,15})?)",
    re.IGNORECASE,
)
_EPOCH_STEP = re.compile(
    r"\bepoch\s{0,8}:?\s{0,8}\[\s{0,8}\d{1,15}\s{0,8}/\s{0,8}\d{1,15}\s{0,8}\]\s{0,8}"
    r"\(\s{0,8}(?P<step>\d{1,15})\s{0,8}/\s{0,8}\d{1,15}\s{0,8}\)",
    re.IGNORECASE,
)
_ONLY_STEP = re.compile(r"\s{0,8}step \d{1,15}\s{0,8}", re.IGNORECASE)
_FRACTION = re.compile(r"^\s*(\d{1,15})\s*/\s*(\d{1,15})\s*$")
_TRAINABLE = re.compile(r"Trainable\s+(\d{1,15})\s{0,8}/\s{0,8}(\d{1,15})")
_DASHED = re.compile(r"(?:^|\s)step:(?P<step>\d{1,15})\s{1,8}-\s")


def step_mark(text: str) -> tuple[str, float] | None:
    """The step (or epoch) that a heading or prefix names: ``("step", 12.0)``."""
    inside = _EPOCH_STEP.search(text) if "(" in text else None
    if inside:
        return "step", float(inside.group("step"))
    marks = [(match.group("kind").lower(), float(match.group("step"))) for match in _STEP_MARK.finditer(text)]
    if steps := [step for kind, step in marks if kind != "epoch"]:
        return "step", steps[0]
    return ("epoch", marks[0][1]) if marks else None


def _settled(key: str, value: Any) -> tuple[str, Any] | None:
    """``"global_step/max_steps": "5/3766"`` becomes a step; any other fraction is no number."""
    if isinstance(value, str) and "/" in value and (fraction := _FRACTION.match(value.strip("'\""))):
        return ("step", float(fraction.group(1))) if "step" in key.lower() or "iter" in key.lower() else None
    return key, value


def json_rows(text: str) -> list[Pairs] | None:
    """The rows of a JSON text: one object, a list of objects, a ``log_history``, or columns of equal length.

    Returns:
        Pairs of each row, or ``None`` where the text is not JSON.
    """
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return list(_rows_of(parsed))


def _rows_of(parsed: Any, depth: int = 0) -> Iterator[Pairs]:
    if isinstance(parsed, list):
        for item in parsed:
            if isinstance(item, (dict, list)) and depth < 4:
                yield from _rows_of(item, depth + 1)
        return
    if not isinstance(parsed, dict):
        return
    columns = {k: v for k, v in parsed.items() if isinstance(v, list) and len(v) > 1}
    # Beside the columns of a run there may be a few lists of something else, as of its evaluations.
    usual, count = Counter(len(v) for v in columns.values()).most_common(1)[0] if columns else (0, 0)
    if 2 * count > len(columns):
        columns = {k: v for k, v in columns.items() if len(v) == usual}
    lengths = {len(v) for v in columns.values()}
    # Beside the number of one step, lists are of its rollouts.
    one_step = any(isinstance(parsed.get(key), (int, float)) for key in ("step", "global_step", "iteration"))
    if (
        columns
        and not one_step
        and len(lengths) == 1
        and not any(isinstance(v[0], (dict, list)) for v in columns.values())
    ):
        names = list(columns)
        for cells in zip(*columns.values(), strict=True):
            yield list(zip(names, cells, strict=True))
        return
    for value in parsed.values():
        if isinstance(value, list) and any(isinstance(item, dict) for item in value) and depth < 4:
            yield from _rows_of(value, depth + 1)
    yield [pair for key, value in flatten(parsed) if (pair := _settled(key, value))]


def dict_pairs(text: str, closed: bool = True) -> tuple[Pairs, bool]:
    """Pairs of a flat Python or JSON dict in ``text``, bare ``nan`` and foreign constructors included.

    Args:
        text: The text between (or after) the braces.
        closed: Whether the closing brace was seen.  A pair at the very end of an unclosed dict may be cut in the
            middle of its number, and is left out.

    Returns:
        The pairs, and whether one was left out.
    """
    pairs: Pairs = []
    cut = False
    for match in _DICT_PAIR.finditer(text):
        value = match.group("value").strip()
        if not closed and match.end() >= len(text.rstrip()):
            cut = True
            continue
        if pair := _settled(match.group("key").strip().rstrip("\\"), value):
            pairs.append(pair)
    return pairs, cut


def dashed_pairs(text: str) -> Pairs | None:
    """``step:N - key:value - key:value`` (verl); keys may hold colons, values may be ``np.float64(...)``."""
    start = _DASHED.search(text)
    if not start:
        return None
    pairs: Pairs = [("step", float(start.group("step")))]
    for item in text[start.end() :].split(" - "):
        key, colon, value = item.rpartition(":")
        if colon:
            pairs.append((key.strip(), value.strip()))
    return pairs


def piped_pairs(text: str) -> Pairs | None:
    """``Step 3 | Loss: 0.1 | Entropy 1.2 | 4.5s`` (prime-rl and many hand-written loops)."""
    segments = text.split("|")
    if len(segments) < 3 and not (len(segments) == 2 and _ONLY_STEP.fullmatch(segments[0])):
        return None
    pairs: Pairs = []
    mark = step_mark(segments[0])
    if mark:
        pairs.append(mark)
    if (trainable := _TRAINABLE.search(text)) and int(trainable.group(2)):
        pairs.append(("frac_reward_zero_std", 1 - int(trainable.group(1)) / int(trainable.group(2))))
    for segment in segments:
        segment_pairs = list(_equal_or_colon(segment)) or _lone(segment)
        pairs.extend(pair for pair in segment_pairs if not (mark and pair[0].lower() in ("step", "epoch")))
    return pairs if len(pairs) >= 2 else None


def listed_pairs(text: str) -> Pairs:
    """``Iter 20: Train loss 0.1, Total rewards mean 0.8, KL 0.0`` (mlx): words and a number between commas."""
    start, colon, rest = text.partition(": ")
    mark = step_mark(start) if colon else None
    segments = (rest if mark else text).split(", ")
    if len(segments) < 4:
        return []
    pairs = [pair for segment in segments for pair in _lone(segment)]
    return [*pairs, mark] if mark and 2 * len(pairs) > len(segments) else []


def _lone(segment: str) -> Pairs:
    match = _SEGMENT.match(segment.strip())
    return [(match.group("key").strip(), match.group("value"))] if match else []


def _equal_or_colon(text: str) -> Iterator[tuple[str, Any]]:
    for match in _EQUALS.finditer(text):
        yield match.group("key"), match.group("value")
    for match in _COLON.finditer(text):
        yield match.group("key").strip(), match.group("value")


def loose_pairs(text: str, is_signal: Callable[[str], bool] = lambda _: False) -> Pairs:
    """``key=value`` and ``key: value`` anywhere in a line, with the step or epoch that a prefix names.

    Args:
        text: The line.
        is_signal: Whether a key is a signal.  What stands before a colon may be more than the key, so that shorter and
            shorter readings of it are returned, up to one that is known.
    """
    pairs: Pairs = []
    for key, value in _equal_or_colon(text):
        # "[12:00:01] INFO trainer - loss: 0.3": the key is the last word or two before the colon.
        tail = re.split(r"\s{2,}| - |\] ", key)[-1].strip()
        readings = (tail, tail.split(" ")[-1]) if " - " in key else (key, tail, tail.split(" ")[-1])
        for reading in dict.fromkeys(readings):
            pairs.append((reading, value))
            if is_signal(reading):
                break
    mark = step_mark(text)
    if mark and not any(key.lower() in ("step", "epoch", "global_step") for key, _ in pairs):
        pairs.append(mark)
    return pairs


def word_pairs(text: str) -> Pairs:
    """``iter 10 loss 0.53 reward 0.3``: a word followed by its number, the last resort."""
    return [(match.group("key"), match.group("value")) for match in _WORDS.finditer(text)]


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
        read_rest: Reads the rest of a line behind a closing brace.
    """

    def __init__(
        self, translator: Translator, unread: Unread, steps: Steps, read_rest: Callable[[str], list[Row]]
    ) -> None:
        self._translator = translator
        self._unread = unread
        self._steps = steps
        self._read_rest = read_rest
        self._pending: list[str] | None = None
        self._size = self._lines = self._number = 0
        self._outer: Pairs = []
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
        return self._read_rest(rest) if rest.strip(" ,]") else []

    def _braces(self, text: str) -> list[Row]:
        stripped = text.strip().rstrip(",")
        if stripped[0] in "{[" and stripped[-1] in "}]" and (documents := json_rows(stripped)) is not None:
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

    def _rows(self, documents: list[Pairs]) -> list[Row]:
        return [self._steps.place(row) for pairs in documents if (row := self._translator.row(pairs, self._number))]

    def _start(self, text: str, prefix: str) -> None:
        self._pending, self._size, self._lines = [text], len(text), 0
        self._steps.heading = step_mark(prefix) or self._steps.heading

    def _continue(self, pending: list[str], text: str) -> list[Row]:
        close, opening = text.find("}"), text.find("{")
        if opening >= 0 and (close < 0 or opening < close):
            before, self._pending = "".join(pending), None
            outer, _ = dict_pairs(before)
            rows = self._dict(before, closed=False) if len(pending) <= 2 else []
            steps = [pair for pair in outer if self._translator.name(pair[0]) == "step"]
            self._outer = steps[-1:]
            return [*rows, *self._read_rest(text[opening:])]
        if close >= 0:
            self._pending = None
            whole = "".join(pending) + text[:close]
            documents = json_rows("{" + whole + "}") if "[" in whole else None
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
        pairs, cut = dict_pairs(body, closed)
        row = self._translator.row(pairs, self._number)
        if row is None:
            return []
        self.printed = True
        if cut:
            self._unread.add(self._number, _CUT_NUMBER(), body[-80:])
        if row.step is None:
            ranked = _RANKED.search(prefix)
            mark = ("step", float(ranked.group(1))) if ranked else step_mark(prefix)
            if mark and mark[0] == "step":
                return [replace(row, step=mark[1])]
            if self._outer:
                inherited = self._translator.row([*pairs, *self._outer], self._number)
                self._outer = []
                return [inherited] if inherited else []
        return [self._steps.place(row)]
