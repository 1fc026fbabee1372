"""What reward functions log: numbers for the step's metrics, and values to be kept with the samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

_DEEP = 6
_LONG = 10_000


class Notes:
    """What a reward function logs in one call, through TRL's ``log_extra`` and ``log_metric``.

    Args:
        answers: How many the call rates.

    Attributes:
        extra: Values by column, one an answer.
        metrics: Numbers by name.
    """

    __slots__ = ("_answers", "extra", "metrics")

    def __init__(self, answers: int = 0) -> None:
        self._answers = answers
        self.extra: dict[str, list[Any]] = {}
        self.metrics: dict[str, list[float]] = {}

    def log_extra(self, column: str, values: Iterable[Any]) -> None:
        """Take a value an answer, at once or bit by bit, to be kept with the samples.

        Values become what JSON can hold; other things are kept as text.
        """
        column = plain_text(str(column))
        taken = self.extra.setdefault(column, [])
        room = max(self._answers + 1 - len(taken), 0)  # one too many is an error, and an iterator may have no end
        taken.extend(_plain(value) for value in islice(values, room))

    def log_metric(self, name: str, value: float) -> None:
        """Take a number for this batch; the step's metrics have the mean of all that is logged under a name."""
        self.metrics.setdefault(plain_text(str(name)), []).append(float(value))

    def fault(self) -> str:
        """Return what is wrong with what was logged; empty where nothing is."""
        for column, values in self.extra.items():
            if len(values) != self._answers:
                many = f"more than {self._answers}" if len(values) > self._answers else len(values)
                return f"logged {many} values of {column!r} (log_extra) for {self._answers} completions"
        return ""

    def spread(self, places: Sequence[int], answers: int) -> Notes:
        """Return these notes on some answers of a batch as notes on all of it; the others have ``None``."""
        wide = Notes(answers)
        wide.metrics = self.metrics
        for column, values in self.extra.items():
            by_place = dict(zip(places, values, strict=True))
            wide.extra[column] = [by_place.get(place) for place in range(answers)]
        return wide


def plain_text(text: str) -> str:
    """Return text that can be written as UTF-8: half a surrogate pair is spelt out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _plain(value: Any, depth: int = 0) -> Any:
    """What JSON can hold of a value; numbers that are not finite, and what it has no form for, as text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return plain_text(str(value))[:_LONG]
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 64 else hex(value)[:_LONG]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if depth < _DEEP and isinstance(value, Mapping):
        return {plain_text(str(key)): _plain(item, depth + 1) for key, item in islice(value.items(), _LONG)}
    if depth < _DEEP and isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in islice(value, _LONG)]
    listed = getattr(value, "tolist", None)  # arrays and tensors
    if callable(listed) and depth < _DEEP:
        return _plain(listed(), depth + 1)
    return plain_text(str(value))[:_LONG]
