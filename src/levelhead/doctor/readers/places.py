"""Where a number of a table stands: at a step, or as a statistic of a whole run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from levelhead.doctor.readers.base import Row
from levelhead.doctor.readers.values import end_of_span, is_number

FIRST, LAST, MEAN, LOWEST, HIGHEST = "first", "last", "mean", "min", "max"
ORDER = (FIRST, LOWEST, MEAN, HIGHEST, LAST)
"""The statistics of a run that are read, in the order in which a diagnosis looks at them."""

_WORDS = {
    FIRST: "first start initial begin beginning before pre base baseline untrained init initially started starting",
    LAST: "last final end after post latest current now trained finally ended ending",
    MEAN: "mean avg average overall",
    LOWEST: "min minimum lowest trough",
    HIGHEST: "max maximum peak highest best",
}
_STATISTIC = {word: statistic for statistic, words in _WORDS.items() for word in words.split()}
_ELSEWHERE = {
    FIRST: "初始 开始 起始 起点 之前 训练前 初期 초반 초기 처음 시작 이전 最初",
    LAST: "最终 最后 最近 之后 训练后 末期 当前 结束 최근 최종 마지막 현재 이후 最後 最新",
    MEAN: "平均 均值 평균",
    LOWEST: "最低 最小 최저 최소",
    HIGHEST: "最高 最大 峰值 최고 최대",
}
"""The same in Chinese, Korean and Japanese, where words are not apart."""
_NOISE = frozenset(["the", "a", "of", "training", "value", "values", "rl", "grpo", "at", "run", "model", "in", "step"])
_IGNORED = re.compile(
    r"^(?:std|stdev|sd|var|variance|count|n|median|p\d+|q\d+|\d+(?:\.\d+)?\s?%|delta|diff|change|trend|unit|units|Δ.*|notes?|"
    r"comment|sem|range|improvement|gain|target|healthy|expected|normal|threshold|变化|差值|备注|说明|변화|비고|차이)$",
    re.IGNORECASE,
)
_STEP = re.compile(
    r"^(?:(?P<kind>global[ _]?step|steps?|iterations?|iters?|it|updates?|epoch|ep|at step|s|t)?\s{0,4}[=:#@]?\s{0,4})?"
    r"(?P<step>\d{1,3}(?:,\d{3}){1,4}|\d{1,15})(?P<thousand>k)?(?:\s(?:steps?|it))?$",
    re.IGNORECASE,
)
_THEN = re.compile(r"\s{0,4}(?:→|->|=>|⟶)\s{0,4}")
_AT = re.compile(r"\s{0,4}@\s?(?:step|iter\w{0,8})?\s?\d{1,12}\W{0,3}$", re.I)
_PLACES = {FIRST: 0.0, HIGHEST: 0.5, LAST: 1.0}
"""Where in a run the statistics lie that its course is read from."""


@dataclass(frozen=True, slots=True)
class Place:
    """A column's place: a step, an epoch, a statistic, a run, or none that is used."""

    step: float | None = None
    epoch: float | None = None
    statistic: str = ""
    bare: bool = False
    run: str = ""


def statistic_of(text: str) -> str:
    """The statistic that a heading names (``Peak``, ``after training``); empty where it names none."""
    if len(text) > 40:
        return ""
    if not text.isascii():
        named = {statistic for statistic, words in _ELSEWHERE.items() if any(word in text for word in words.split())}
        if named:
            return named.pop() if len(named) == 1 and not re.search(r"\d", text) else ""
    words = [word for word in re.findall(r"[a-z]+", text.lower()) if word not in _NOISE]
    return _STATISTIC.get(words[0], "") if len(words) == 1 and not re.search(r"\d", text) else ""


def place_of(text: str) -> Place | None:
    """The place that a heading names; ``None`` where it names none at all."""
    text = text.strip("*` ")
    if statistic := statistic_of(text):
        return Place(statistic=statistic)
    if _IGNORED.match(text):
        return Place()
    match = _STEP.match(text)
    if match is None:
        return None
    step = float(match.group("step").replace(",", "")) * (1000 if match.group("thousand") else 1)
    kind = (match.group("kind") or "").lower()
    return Place(epoch=step) if kind in ("epoch", "ep") else Place(step=step, bare=not kind)


def split_statistic(name: str) -> tuple[str, str]:
    """``max KL`` and ``KL (max)`` as the signal's own name and the statistic; ``("", "")`` for any other name."""
    match = re.match(r"^(?P<name>.+?)\s{0,4}[(\[](?P<word>[A-Za-z]+)[)\]]$", name)
    if match and (statistic := _STATISTIC.get(match.group("word").lower())):
        return match.group("name"), statistic
    head, _, rest = name.partition(" ")
    if rest and (statistic := _STATISTIC.get(head.lower())):
        return rest, statistic
    front, _, tail = name.rpartition(" ")
    if front and (statistic := _STATISTIC.get(tail.lower())):
        return front, statistic
    return "", ""


def bare(cell: str) -> str:
    """The number of a cell without the step behind it (``0.664 @ step 140``); of ``0.7-0.8`` the middle."""
    number = _AT.sub("", cell)
    middle = end_of_span(number)
    return number if middle is None else str(middle)


def course(pairs: Iterable[tuple[str, Any]]) -> list[list[tuple[str, Any]]]:
    """What the cells of one run tell of its course, one list of pairs a moment.

    ``0.1 → 0.4`` is of several moments; a heading says of which its cells are by ``initial``, ``best`` or ``final``;
    every other cell is of the last.
    """
    moments: dict[float, list[tuple[str, Any]]] = {}
    for name, cell in pairs:
        signal, statistic = split_statistic(name)
        values = _THEN.split(cell) if isinstance(cell, str) else [cell]
        if len(values) > 1 and all(map(is_number, values)):
            for i, value in enumerate(values):
                moments.setdefault(i / (len(values) - 1), []).append((name, value))
            continue
        at = _PLACES.get(statistic)
        cell = bare(cell) if isinstance(cell, str) else cell
        moments.setdefault(1.0 if at is None else at, []).append((name if at is None else signal, cell))
    return [moments[at] for at in sorted(moments)]


class Steps:
    """The steps that a log names above or beside its rows and not in them: in a heading, or as a progress bar."""

    def __init__(self) -> None:
        self.heading: tuple[str, float] | None = None
        self.bar: float | None = None

    def place(self, row: Row) -> Row:
        """The row with the step of the heading above it or of the progress bar beside it, where it has none."""
        heading, self.heading = self.heading, None
        if row.step is not None:
            return row
        if heading and heading[0] == "step":
            return replace(row, step=heading[1])
        if self.bar is not None:
            step, self.bar = self.bar, None
            return replace(row, step=step)
        return replace(row, epoch=heading[1]) if heading and row.epoch is None else row
