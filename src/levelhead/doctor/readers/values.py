"""From text to numbers: what a metric's value may look like in a log, and nothing looser."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

LONGEST = 64
"""Characters of a number in any dress; a plain one may be longer."""

_WORDS = {
    "nan": math.nan,
    "inf": math.inf,
    "infinity": math.inf,
    "+inf": math.inf,
    "-inf": -math.inf,
    "-infinity": -math.inf,
}
_ABSENT = {"", "-", "--", "none", "null", "no log", "n/a", "na", "—", "\u2013", "..."}
_WRAPPED = re.compile(
    r"^(?:np\.|numpy\.|torch\.|jnp\.)?(?:float\d*|int\d*|bfloat16|tensor|array)\(\s{0,4}([^,()]+)[,)]"
)
_THOUSANDS = re.compile(r"^[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$")
_UNIT = re.compile(
    r"^([-+]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)\s*(s|sec|secs|seconds?|ms|%|tokens?|tok|GiB|GB|x)\b"
)
_UNIT_SIGN = re.compile(r"^([-+]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)\s*(%)")
_PLUS_MINUS = re.compile(r"^([^±]+?)\s{0,4}(?:±|\+/-|\+-)\s{0,4}(.+)$")
NUMBER = (
    r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
)
"""Regular expression of a bare number, case-insensitive words included."""

_ASIDE = re.compile(
    r"^([-+]?[\d.][\d.,eE+\-]{0,24}%?)\*{0,2}\s{0,4}[(\uff08@]"
    r"(?:of \d|[^()\uff08\uff09\d])[^()\uff08\uff09]{0,40}[)\uff09]\*{0,2}$"
)
"""A number with a remark behind it: ``0.676 (cap fired)``."""
_COUNTED = re.compile(
    r"^\d{1,9}(?:\s?/\s?\d{1,9})?\s{0,4}[(\uff08]\s?(?P<share>[01]?\.\d{1,12}|\d{1,3}(?:\.\d{1,6})?\s?%)\s?[)\uff09]$"
)
"""A count with its share behind it: ``5 (0.83)``, ``9/22 (41%)``."""
_ARROWS = ("→", "->", "=>", "⟶")
_SPAN = re.compile(
    r"^(?:[^\d+\-.→]{1,12})?(?P<low>-?\d{1,12}(?:\.\d{1,12})?)%?\s{0,4}(?P<between>→|->|=>|⟶|[-\u2013\u2014~\uff5e至到])\s{0,4}"
    r"(?P<high>-?\d{1,12}(?:\.\d{1,12})?)(?:[^\d+\-.→%]{1,12})?$"
)

_WRAPPERS = {"data", "metrics", "logs", "log", "values", "payload", "train", "training", "scalars"}


class NotANumberError(ValueError):
    """The text is neither a number nor a mark for an absent one."""


def parse_number(text: str) -> float | None:
    """The number that ``text`` spells, NaN and infinities included; ``None`` where it says that there is none.

    Quotes, bold marks, thousands separators, ``np.float64(...)`` and a unit after the number are understood; a
    percent sign divides by 100.

    Raises:
        NotANumberError: If it spells anything else.
    """
    try:
        if "_" not in text:
            return float(text)
    except ValueError:
        pass
    if len(text) > LONGEST:
        raise NotANumberError(text[:60])
    bare = text.strip().strip("'\"*`").strip().lstrip("~≈").replace("\u2212", "-")
    lowered = bare.lower()
    if lowered in _ABSENT:
        return None
    if lowered in _WORDS:
        return _WORDS[lowered]
    if wrapped := _WRAPPED.match(bare):
        return parse_number(wrapped.group(1))
    if _THOUSANDS.match(bare):
        return float(bare.replace(",", ""))
    unit = _UNIT.match(bare) or _UNIT_SIGN.match(bare)
    if unit:
        scale = {"%": 0.01, "ms": 0.001}.get(unit.group(2), 1.0)
        return float(unit.group(1).replace(",", "")) * scale
    if bare != text:
        return parse_number(bare)
    if counted := _COUNTED.match(bare):
        return parse_number(counted.group("share"))
    if aside := _ASIDE.match(bare):
        return parse_number(aside.group(1))
    raise NotANumberError(text[:60])


def end_of_span(text: str) -> float | None:
    """Where ``0.06 -> 0.25`` ends, or the middle of ``0.7-0.8``; ``None`` for anything else.

    A word before and after may stand beside it ("up to 15-23", "降到 0.4-0.5").
    """
    span = _SPAN.match(text) if len(text) <= LONGEST else None
    if span is None:
        return None
    low, high = float(span.group("low")), float(span.group("high"))
    return high if span.group("between") in _ARROWS else (low + high) / 2


def parse_pair(text: str) -> tuple[float | None, float | None]:
    """A number that may carry its standard deviation, as in ``0.102±0.077``.

    Raises:
        NotANumberError: If the text is not of that form.
    """
    both = _PLUS_MINUS.match(text) if len(text) <= 2 * LONGEST else None
    if both:
        return parse_number(both.group(1)), parse_number(both.group(2))
    return parse_number(text), None


def is_number(cell: str) -> bool:
    """Whether a cell holds a number."""
    try:
        return parse_pair(cell)[0] is not None
    except NotANumberError:
        return False


def flatten(mapping: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Leaves of a nested mapping with keys joined by ``/``; mere envelopes (``data``, ``metrics``) leave no trace."""
    for key, value in mapping.items():
        name = str(key)
        if isinstance(value, Mapping):
            if depth < 3:
                inner = prefix if name.lower() in _WRAPPERS else f"{prefix}{name}/"
                yield from flatten(value, inner, depth + 1)
        else:
            yield f"{prefix}{name}", value


def number_of(value: Any) -> float | None:
    """A JSON leaf as a number: numbers, numeric strings and one-element lists; ``None`` for anything else.

    Booleans are not numbers here.
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str) and len(value) <= 64:
        try:
            return parse_number(value)
        except NotANumberError:
            return None
    if isinstance(value, list) and len(value) == 1:
        return number_of(value[0]) if not isinstance(value[0], list) else None
    return None
