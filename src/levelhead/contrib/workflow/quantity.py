r"""Reading quantities exactly: ``3/4``, ``1 1/2``, ``2\sqrt{3}``, ``12.5 km/h``, ``50%``, ``\frac{\pi}{2}``.

Arithmetic goes through sympy's exact numbers and unit system.  The text is parsed by a grammar of our own, because
sympy's parser evaluates its input as Python.
"""

from __future__ import annotations

import json
import operator
import re
from dataclasses import dataclass
from functools import lru_cache, reduce
from importlib import resources
from typing import Any, TypeAlias

from lark import Lark, LarkError, Token, Transformer, v_args

Number: TypeAlias = Any
"""A sympy expression without symbols; sympy has no types."""

_LONGEST = 120
_LARGEST_POWER = 64
_DEEPEST = 12

_LATEX = (
    (re.compile(r"\\[dt]?frac\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*\{((?:[^{}]|\{[^{}]*\})*)\}"), r"((\1)/(\2))"),
    (re.compile(r"\\sqrt\s*\{([^{}]*)\}"), r"sqrt(\1)"),
    (re.compile(r"\\(?:text|mathrm|textbf|mathbf)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\^\s*\{([^{}]*)\}"), r"^(\1)"),
    (re.compile(r"\\(?:cdot|times)"), "*"),
    (re.compile(r"\\(?:left|right|displaystyle|[!,;: ])"), ""),
    (re.compile(r"\\pi\b|π"), " pi "),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"√\s*([0-9]+)"), r"sqrt(\1)"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"[\u00d7\u00b7]"), "*"),
)
_PLAIN = str.maketrans({"\u2212": "-", "\u2013": "-", "²": "^2", "³": "^3", "\\": " ", "{": "(", "}": ")"})
_THOUSANDS = re.compile(r"(?<![0-9.])([0-9]{1,3}(?:,[0-9]{3})+)(?![0-9])")
_MONEY = re.compile(r"[$€£¥₹]")
_SPLIT = re.compile(r"^(?P<number>(?:sqrt|pi|[0-9.+\-*/^()\s])*)(?P<unit>%|°?[^0-9]*.*)$", re.DOTALL)
_UNIT_FACTOR = re.compile(
    r"(?P<over>/|\bper\b)?\s*(?P<power>square|cubic)?\s*(?P<name>[A-Za-z°]+)\s*(?:\^?\s*(?P<to>-?[123]))?"
)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and what it counts.

    Attributes:
        value: Exact value, in ``unit`` where there is one.
        unit: A sympy unit, or ``None`` for a bare number and for words that are no unit (apples, dollars).
        percent: Whether it stood before a per-cent sign; ``value`` is the number before the sign.
        decimals: Digits after the point, where it was written as one decimal number.
    """

    value: Number
    unit: Number | None = None
    percent: bool = False
    decimals: int | None = None


def read_quantity(text: str) -> Quantity | None:
    """Read the quantity that a short text states, or return ``None`` where it states none that can be read."""
    plain = _plain(text)
    if len(plain) > _LONGEST:
        return None
    match = _SPLIT.match(plain.strip())
    if match is None:
        return None
    number, rest = match["number"].strip().rstrip("*"), match["unit"].strip().rstrip(".")
    if number.endswith("/"):  # "5 /s": the slash belongs to the unit
        number, rest = number[:-1].rstrip(), f"/{rest}"
    value = _value(number)
    if value is None:
        return None
    unit = _unit(rest)
    if unit is None and re.search("[0-9]", rest):
        return None  # a second number: a hedge, or nothing that can be read
    decimal = re.fullmatch(r"[-+]?[0-9]*\.([0-9]+)", number.replace(" ", ""))
    return Quantity(value, unit, rest.startswith("%"), len(decimal[1]) if decimal else None)


def same_value(one: Quantity, other: Quantity) -> bool:
    """Whether two quantities are the same, units converted; a missing unit, and a per-cent sign, are understood."""
    if one.unit is not None and other.unit is not None:
        return _equal_in_units(one.value, one.unit, other.value, other.unit)
    pairs = [(one.value, other.value)]
    if one.percent != other.percent:
        pairs.append((one.value / 100, other.value) if one.percent else (one.value, other.value / 100))
    return any(_equal(a, b) for a, b in pairs)


def _plain(text: str) -> str:
    for pattern, instead in _LATEX:
        text = pattern.sub(instead, text)
    text = _MONEY.sub("", text.translate(_PLAIN))
    return _THOUSANDS.sub(lambda match: match[1].replace(",", ""), text)


def _value(number: str) -> Number | None:
    if not number or number.count("(") > _DEEPEST or len(max(re.findall(r"[0-9]+", number), key=len, default="")) > 40:
        return None
    try:
        value: Number = _parser().parse(number)
    except (LarkError, _TooLargeError, ZeroDivisionError):
        return None
    return value if value.is_number and value.is_real and value.is_finite else None


class _TooLargeError(Exception):
    """A power that would take too long to compute."""


@lru_cache(maxsize=1)
def _parser() -> Lark:
    grammar = resources.files(__package__).joinpath("quantity.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", transformer=_Arithmetic())


@v_args(inline=True)
class _Arithmetic(Transformer[Token, Number]):
    """Exact arithmetic, done while parsing."""

    add, mul, neg, sub = operator.add, operator.mul, operator.neg, operator.sub  # by the grammar's rules

    def number(self, digits: Token) -> Number:
        return _sympy().Rational(str(digits))

    def mixed(self, whole: Token, top: Token, bottom: Token) -> Number:
        return self.number(whole) + self.divide(self.number(top), self.number(bottom))

    def pi(self) -> Number:
        return _sympy().pi

    def root(self, radicand: Number) -> Number:
        return _sympy().sqrt(radicand)

    def divide(self, dividend: Number, divisor: Number) -> Number:
        if divisor == 0:
            raise _TooLargeError
        return dividend / divisor

    def power(self, base: Number, exponent: Number) -> Number:
        if not exponent.is_Rational or abs(exponent) > _LARGEST_POWER or abs(base) > 10**6:
            raise _TooLargeError
        return base**exponent


def _unit(words: str) -> Number | None:
    """Read ``km/h``, ``square feet``, ``miles per hour``; ``None`` where any word of it is no unit."""
    factors, position = [], 0
    while position < len(words):
        match = _UNIT_FACTOR.match(words, position)
        unit = _units().get(match["name"]) if match else None
        if match is None or unit is None:
            return None
        power = int(match["to"] or {"square": 2, "cubic": 3}.get(match["power"] or "", 1))
        factors.append(unit ** (-power if match["over"] else power))
        position = match.end() + len(re.match(r"[\s*]*", words[match.end() :])[0])  # type: ignore[index]
    return reduce(operator.mul, factors) if factors else None


def _equal(one: Number, other: Number) -> bool:
    difference = one - other
    if difference.is_Rational:
        return bool(difference == 0)
    # Numerically, to far more digits than an answer has: proving equality of radicals can take forever.
    return bool(abs(difference.evalf(50)) <= abs(other.evalf(50)) * _sympy().Float("1e-35"))


def _equal_in_units(one: Number, one_unit: Number, other: Number, other_unit: Number) -> bool:
    from sympy.physics import units

    base = [units.meter, units.kilogram, units.second, units.kelvin]
    ratio = units.convert_to(one_unit / other_unit, base)
    return bool(ratio.is_number) and _equal(one * ratio, other)


@lru_cache(maxsize=1)
def _sympy() -> Any:
    import sympy  # half a second to import: only for those who compare numbers

    return sympy


@lru_cache(maxsize=1)
def _units() -> dict[str, Number]:
    """Return the units by every name they go by."""
    from sympy.physics import units as u

    named = json.loads(resources.files(__package__).joinpath("units.json").read_text(encoding="utf-8"))
    units = {word: getattr(u, name) for name, words in named.items() if hasattr(u, name) for word in words}
    units |= dict.fromkeys(("week", "weeks"), 7 * u.day) | dict.fromkeys(("oz", "ounce", "ounces"), u.pound / 16)
    return units | dict.fromkeys(("ton", "tons", "tonne", "tonnes"), 1000 * u.kilogram)
