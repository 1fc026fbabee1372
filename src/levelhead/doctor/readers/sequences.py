"""Numbers as people write them down: lists, ``(step, value)`` pairs, arrows, and statistics behind a name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import fmean
from typing import Any

from levelhead.doctor.readers.base import Row, Translator
from levelhead.doctor.readers.places import FIRST, LAST, MEAN, split_statistic, statistic_of
from levelhead.doctor.readers.values import NUMBER

_NAME = r"^[\s•*\-\u2013·>\"'`]{0,12}(?P<name>[^\W\d][^:=\[\]{}→]{0,80}?)[\s\"'`*]{0,6}"
_LIST = re.compile(rf"{_NAME}(?:[:=]\s{{0,8}}|\s)(?:np\.array\(|tensor\()?\[(?P<items>[^\[\]{{}}]{{1,60000}})\]", re.I)
_NESTED = re.compile(rf"{_NAME}[:=]\s{{0,8}}\[(?P<items>\s{{0,4}}[(\[][^{{}}]{{1,60000}})\]")
_TUPLE = re.compile(rf"[(\[]\s{{0,4}}(\d{{1,15}})\s{{0,4}},\s{{0,4}}({NUMBER})\s{{0,4}}[)\]]", re.I)
_ARROW = re.compile(r"\s{0,8}(?:->|→|=>|-->|⟶|➜)\s{0,8}")
_CHAIN = re.compile(
    rf"{_NAME}(?:[:=]|\s)\s{{0,8}}(?P<chain>{NUMBER}(?:\s{{0,4}}[%a-zA-Z]{{0,8}})?"
    rf"(?:{_ARROW.pattern}{NUMBER}(?:\s{{0,4}}[%a-zA-Z]{{0,8}})?){{1,200}})",
    re.I,
)
_STATISTICS = re.compile(
    rf"(?<![\w.])(?P<word>[A-Za-z]{{3,8}})\.?\s{{0,4}}[:=]?\s{{0,4}}(?P<value>{NUMBER})(?=[\s,;|)\]/]|$)", re.I
)
_BEHIND = re.compile(
    rf"{_NAME}(?:[:=(\[|]|\s-|\s)\s{{0,8}}(?P<rest>(?:mean|avg|average|min|max|first|last|final|peak)\b.*)$", re.I
)
_LONE = re.compile(
    rf"{_NAME}(?:[:=|]|\bwas\b|\bis\b)\s{{0,8}}(?P<value>{NUMBER}\s{{0,4}}%?)(?:\s{{0,4}}[A-Za-z]{{0,8}})?"
    r"\s{0,8}[.,;|]?\s{0,8}$",
    re.I,
)
_AT = re.compile(
    rf"{_NAME}\s?(?:@|\bat step\b|\(step)\s{{0,4}}(?:step\s?)?(?P<step>\d{{1,15}})\)?"
    rf"\s{{0,4}}[:=]\s{{0,4}}(?P<value>{NUMBER}\s{{0,4}}%?)",
    re.I,
)
_GROUP = re.compile(
    r"\[(?P<rewards>[-+\d.,\s]{3,400})\](?:[^\[\]]{0,80}?)(?:->|→|=>|adv\w{0,9}|优势)[^\[\]]{0,40}\[(?P<advantages>[-+\d.,\s]{3,400})\]",
    re.I,
)
"""The rewards of a group and what became of them: ``[1.0, 0.2] -> [+1, -1]``."""
_STEPS = frozenset(
    ("step", "steps", "iteration", "iterations", "iter", "iters", "updates", "x", "global_step", "global_steps")
)
_MAX_LISTS = 200
_MAX_ITEMS = 20_000
_LONGEST = 70_000


class Sequences:
    """Reads lines that carry a name and several numbers; lists are kept until the block of them ends.

    Args:
        translator: Maps the names.
    """

    def __init__(self, translator: Translator) -> None:
        self._translator = translator
        self._steps: list[float] = []
        self._lists: list[tuple[str, list[str]]] = []
        self._points: dict[float, list[tuple[str, Any]]] = {}
        self._groups: list[tuple[list[float], list[float]]] = []
        self._count = 0
        self._number = 0

    @property
    def open(self) -> bool:
        """Whether lists are waiting for the end of their block."""
        return bool(self._lists or self._points or self._steps or self._groups)

    def take(self, text: str, number: int, alone: bool) -> list[Row] | None:
        """The rows of a line of one of these kinds; ``None`` where it is of none, and belongs to another reader.

        Args:
            text: The line.
            number: Its number.
            alone: No step stands in the line or above it, so that a statistic is the whole run's.
        """
        if len(text) > _LONGEST:
            return None
        if text.count("[") > 1 and self._group(text, number):
            return []
        if "[" in text and self._listed(text, number):
            return []
        if (rows := self._at(text, number)) is not None:
            return rows
        if not alone:
            return None
        if ("→" in text or ">" in text or "⟶" in text or "➜" in text) and (rows := self._chain(text, number)):
            return rows
        return self._statistics(text, number)

    def finish(self) -> Iterator[Row]:
        """The rows of the lists so far, one a step."""
        yield from self._of_groups()
        steps, lists, points = self._steps, self._lists, self._points
        self._steps, self._lists, self._points, self._count = [], [], {}, 0
        for i in range(max((len(items) for _, items in lists), default=0)):
            pairs: list[tuple[str, Any]] = [(name, items[i]) for name, items in lists if i < len(items)]
            if i < len(steps):
                pairs.append(("step", steps[i]))
            row = self._translator.row(pairs, self._number, least=0)
            if row:
                yield row
        for step in sorted(points):
            row = self._translator.row([*points[step], ("step", step)], self._number, least=0)
            if row:
                yield row

    def _group(self, text: str, number: int) -> bool:
        match = _GROUP.search(text)
        rewards, advantages = (_numbers(match.group(name)) if match else [] for name in ("rewards", "advantages"))
        if len(rewards) < 2 or len(rewards) != len(advantages) or len(self._groups) >= _MAX_LISTS:
            return False
        self._number = number
        self._groups.append((rewards, advantages))
        return True

    def _of_groups(self) -> Iterator[Row]:
        """One row for the groups of a step: their size, mean reward, share without contrast and extreme advantages."""
        groups, self._groups = self._groups, []
        if groups:
            advantages = [value for _, group in groups for value in group]
            pairs: list[tuple[str, Any]] = [
                ("group_size", max(len(rewards) for rewards, _ in groups)),
                ("reward", fmean(value for rewards, _ in groups for value in rewards)),
                ("frac_reward_zero_std", fmean(max(rewards) == min(rewards) for rewards, _ in groups)),
                ("advantages/max", max(advantages)),
                ("advantages/min", min(advantages)),
            ]
            if row := self._translator.row(pairs, self._number, least=0):
                yield row

    def _listed(self, text: str, number: int) -> bool:
        self._number = number
        nested = _NESTED.match(text)
        if nested and self._translator.knows(nested.group("name").strip()):
            points = _TUPLE.findall(nested.group("items"))[:_MAX_ITEMS]
            for step, value in points if self._count < _MAX_ITEMS * 10 else ():
                self._points.setdefault(float(step), []).append((nested.group("name").strip(), value))
                self._count += 1
            return bool(points)
        match = _LIST.match(text)
        if match is None or len(self._lists) >= _MAX_LISTS:
            return False
        name = match.group("name").strip(" '\"*`")
        items = [item.strip() for item in re.split(r"[,\s]\s*", match.group("items").strip()) if item][:_MAX_ITEMS]
        if len(items) < 2 or not all(
            re.fullmatch(NUMBER, item, re.I) or item.lower() in ("none", "null") for item in items
        ):
            return False
        if name.lower() in _STEPS:
            self._steps = [float(item) for item in items if re.fullmatch(r"\d{1,15}(?:\.0*)?", item)]
            return True
        if not self._translator.knows(name):
            return False
        self._lists.append((name, items))
        return True

    def _at(self, text: str, number: int) -> list[Row] | None:
        match = _AT.match(text) if "@" in text or "step" in text.lower() else None
        if match is None:
            return None
        # "pass@1" is a score at one try, and no score at step 1.
        whole = self._translator.keys.lookup(text[: match.end("step")].strip())
        if whole is not None and whole.name.startswith(("rewards/", "eval/")):
            return None
        name = match.group("name").strip()
        row = self._translator.row([(name, match.group("value")), ("step", match.group("step"))], number, least=0)
        return [row] if row else None

    def _chain(self, text: str, number: int) -> list[Row] | None:
        match = _CHAIN.match(text)
        if match is None or not self._translator.knows(name := match.group("name").strip(" *`")):
            return None
        values = _ARROW.split(match.group("chain"))
        if len(values) == 2:
            places = zip((FIRST, LAST), values, strict=True)
            return [row for place, value in places if (row := self._row(name, value, number, place))]
        self._number = number
        self._lists.append((name, [value.strip() for value in values]))
        return []

    def _statistics(self, text: str, number: int) -> list[Row] | None:
        behind = _BEHIND.match(text)
        if behind and self._translator.knows(name := behind.group("name").strip(" *`")):
            pairs = [
                (statistic_of(m.group("word")), m.group("value")) for m in _STATISTICS.finditer(behind.group("rest"))
            ]
            rows = [row for word, value in pairs if word and (row := self._row(name, value, number, word))]
            if rows:
                return rows
        if lone := _LONE.match(text):
            name, statistic = split_statistic(lone.group("name").strip(" *`"))
            # "Avg Reward" is what a step's reward is called.
            plain = statistic == MEAN and self._translator.knows(lone.group("name").strip(" *`"))
            if (
                statistic
                and not plain
                and self._translator.knows(name)
                and (row := self._row(name, lone.group("value"), number, statistic))
            ):
                return [row]
        return None

    def _row(self, name: str, value: str, number: int, statistic: str) -> Row | None:
        row = self._translator.row([(name, value)], number, least=0)
        return Row(None, row.values, None, number, statistic) if row else None


def _numbers(text: str) -> list[float]:
    try:
        return [float(item) for item in text.split(",") if item.strip()]
    except ValueError:
        return []
