r"""Reads a final answer written in LaTeX or plain text as mathematics.

A parser of our own, because sympy's evaluates what it reads as Python: numbers, fractions, roots, powers, functions,
variables, tuples, intervals, sets, unions, lists, matrices, equations and ``\pm``.  Units, degrees, per cent and dollar
signs count for nothing, as in the MATH data set's own comparison (Hendrycks et al. 2021), and ``x = 5`` is ``5``.

Runs in the child process alone; imported by nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy

from levelhead.tasks.datasets.checkers.tokens import Token, UnreadableError, tokens

Expr: TypeAlias = Any
"""A sympy expression; sympy has no types."""

_DEEPEST = 40
_LARGEST_EXPONENT = 1000
_FUNCTIONS = {
    "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec, "csc": sympy.csc,
    "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan, "sinh": sympy.sinh, "cosh": sympy.cosh,
    "ln": sympy.log, "log": sympy.log, "exp": sympy.exp,
}  # fmt: skip
_CLOSING = {"(": ")", "[": "]", r"\{": r"\}", "{": "}", "|": "|", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_RELATIONS = {
    "=": "=", "<": "<", ">": ">", r"\le": "<=", r"\leq": "<=", r"\ge": ">=", r"\geq": ">=", r"\ne": "!=",
    r"\neq": "!=", r"\in": "in", r"\approx": "=", r"\equiv": "=",
}  # fmt: skip
_STARTS = {"number", "letter"}


@dataclass(frozen=True)
class Group:
    """Several values: a tuple or an interval in its brackets, a set, a union, a list of answers, or a matrix."""

    kind: str
    parts: tuple[Any, ...]


@dataclass(frozen=True)
class Relation:
    """Two sides and what stands between them; a chain holds several."""

    operators: tuple[str, ...]
    sides: tuple[Any, ...]


def parse_answer(text: str) -> Any:
    r"""Return the value of an answer: a sympy expression, a :class:`Group` or a :class:`Relation`.

    Raises:
        UnreadableError: The text is no such mathematics.
    """
    items = tokens(text)
    if not any(token.text in (r"\pm", r"\mp") for token in items):
        return _Parser(items, 1).whole()
    values = [_Parser(items, sign).whole() for sign in (1, -1)]
    return Group("list", tuple(part for value in values for part in _parts(value)))


class _Parser:
    """Recursive descent over the tokens of one answer."""

    def __init__(self, items: list[Token], sign: int) -> None:
        self._items, self._sign = items, sign
        self._at = self._depth = 0

    def whole(self) -> Any:
        value = self._sequence("list", end=None)
        if self._at < len(self._items):
            raise UnreadableError(f"{self._items[self._at].text!r} is not understood here")
        return value

    def _peek(self) -> str:
        return self._items[self._at].text if self._at < len(self._items) else ""

    def _kind(self) -> str:
        return self._items[self._at].kind if self._at < len(self._items) else ""

    def _take(self) -> str:
        if self._at >= len(self._items):
            raise UnreadableError("it ends in the middle")
        self._at += 1
        return self._items[self._at - 1].text

    def _accept(self, *texts: str) -> str:
        return self._take() if self._peek() in texts and self._at < len(self._items) else ""

    def _expect(self, text: str) -> None:
        if self._take() != text:
            raise UnreadableError(f"{text!r} is missing")

    def _sequence(self, kind: str, end: str | None) -> Any:
        parts = [self._relation()]
        while self._peek() in (",", ";", r"\text") and self._peek() != (end or "\0"):
            self._take()
            parts.append(self._relation())
        return parts[0] if kind == "list" and len(parts) == 1 else Group(kind, tuple(parts))

    def _relation(self) -> Any:
        sides, operators = [self._sum()], []
        while self._peek() in _RELATIONS:
            operators.append(_RELATIONS[self._take()])
            sides.append(self._sum())
        return Relation(tuple(operators), tuple(sides)) if operators else sides[0]

    def _sum(self) -> Any:
        value = self._product()
        while operator := self._accept("+", "-", r"\pm", r"\mp", r"\cup"):
            other = self._product()
            if operator == r"\cup":
                value = Group("union", (*_parts(value, "union"), *_parts(other, "union")))
            else:
                sign = {"+": 1, "-": -1, r"\pm": self._sign, r"\mp": -self._sign}[operator]
                value = scalar(value) + sign * scalar(other)
        return value

    def _product(self) -> Any:
        value = self._signed()
        while True:
            if self._accept("*", r"\cdot", r"\times"):
                value = _times(value, self._signed())
            elif self._accept("/", r"\div", ":"):
                value = _quotient(scalar(value), scalar(self._signed()))
            elif self._starts_atom():
                value = self._implicit(value)
            else:
                return value

    def _implicit(self, value: Any) -> Any:
        r"""Multiply, as in ``2x``; ``3\frac{1}{2}`` is a mixed number."""
        mixed = self._peek() == r"\frac" and getattr(value, "is_Integer", False)
        other = self._power()
        plain = mixed and getattr(other, "is_Rational", False) and 0 < other < 1
        return value + other if plain else _times(value, other)

    def _starts_atom(self) -> bool:
        text = self._peek()
        return self._kind() in _STARTS or self._kind() == "command" or text in ("(", "[", r"\{", "{")

    def _signed(self) -> Any:
        sign = self._accept("-", "+", r"\pm", r"\mp")
        if not sign:
            return self._power()
        self._deeper(1)
        value = self._signed()
        self._deeper(-1)
        if sign == "+":
            return value
        return {"-": -1, r"\pm": self._sign, r"\mp": -self._sign}[sign] * scalar(value)

    def _power(self) -> Any:
        value = self._atom()
        while operator := self._accept("^", "!", "'"):
            if operator == "^":
                value = _raised(scalar(value), scalar(self._argument()))
            elif operator == "!":
                value = _factorial(scalar(value))
        return value

    def _argument(self) -> Any:
        r"""One group in braces, or the one token that LaTeX takes: ``\frac12`` is one half."""
        if self._peek() == "{":
            return self._bracketed("{")
        if self._kind() == "number" and len(self._peek()) > 1 and self._peek().isdigit():
            token = self._items[self._at]
            self._items = [
                *self._items[: self._at], Token("number", token.text[0]), Token("number", token.text[1:]),
                *self._items[self._at + 1 :],
            ]  # fmt: skip
        if self._peek() == "-":
            self._take()
            return -scalar(self._atom())
        return self._atom()

    def _deeper(self, by: int) -> None:
        self._depth += by
        if self._depth > _DEEPEST:
            raise UnreadableError("nested too deeply")

    def _atom(self) -> Any:
        self._deeper(1)
        try:
            kind, text = self._kind(), self._peek()
            if kind == "number":
                digits = self._take()
                return self._symbol(digits) if self._peek() == "_" else sympy.Rational(digits)
            if kind == "letter":
                return self._symbol(self._take())
            if text in ("(", "[", r"\{", "{", "|", r"\lfloor", r"\lceil"):
                return self._bracketed(text)
            if kind == "command":
                return self._command(self._take())
            raise UnreadableError(f"{text!r} is not understood here" if text else "it ends in the middle")
        finally:
            self._deeper(-1)

    def _symbol(self, name: str) -> Expr:
        if self._accept("_"):
            start = self._at
            self._argument()
            return sympy.Symbol(name + "_" + "".join(token.text for token in self._items[start : self._at]).strip("{}"))
        return {"i": sympy.I, "e": sympy.E}.get(name, sympy.Symbol(name))

    def _bracketed(self, opening: str) -> Any:
        self._take()
        if opening == r"\{":
            value = Group("set", ()) if self._peek() == r"\}" else self._sequence("set", r"\}")
            self._expect(r"\}")
            return value
        value = self._sequence("list", None)
        closing = self._take()
        if opening in ("(", "[") and closing in (")", "]"):
            return Group(opening + closing, value.parts) if is_group(value, "list") else value
        if closing != _CLOSING[opening]:
            raise UnreadableError(f"{_CLOSING[opening]!r} is missing")
        wrap = {"|": sympy.Abs, r"\lfloor": sympy.floor, r"\lceil": sympy.ceiling}.get(opening)
        return wrap(scalar(value)) if wrap else value

    def _command(self, name: str) -> Any:
        if name == r"\frac":
            return _quotient(scalar(self._argument()), scalar(self._argument()))
        if name == r"\sqrt":
            degree = scalar(self._bracketed("[")) if self._peek() == "[" else sympy.Integer(2)
            return _raised(scalar(self._argument()), _quotient(sympy.Integer(1), degree))
        if name == r"\binom":
            top, bottom = scalar(self._argument()), scalar(self._argument())
            return sympy.binomial(_small(top), _small(bottom))
        if name == r"\begin":
            return self._matrix()
        constants = {r"\pi": sympy.pi, r"\infty": sympy.oo, r"\emptyset": Group("set", ())}
        if name in constants:
            return constants[name]
        if name[1:] in _FUNCTIONS:
            return self._function(name[1:])
        return self._symbol(name)

    def _function(self, name: str) -> Expr:
        base = scalar(self._argument()) if self._accept("_") else None
        power = scalar(self._argument()) if self._accept("^") else None
        argument = scalar(self._bracketed(self._peek()) if self._peek() in ("(", "{", "[") else self._product())
        value = sympy.log(argument, base) if base is not None else _FUNCTIONS[name](argument)
        if name == "log" and base is None:
            value = sympy.log(argument, 10)
        return value if power is None else _raised(value, power)

    def _matrix(self) -> Group:
        self._bracketed("{")
        rows, row = [], [self._sum()]
        while (divider := self._take()) != r"\end":
            if divider == "&":
                row.append(self._sum())
            elif divider == r"\cr":
                rows.append(tuple(row))
                row = [self._sum()] if self._peek() != r"\end" else []
            else:
                raise UnreadableError(f"{divider!r} is not understood in a matrix")
        self._bracketed("{")
        rows += [tuple(row)] if row else []
        return Group("matrix", tuple(Group("row", cells) for cells in rows))


def is_group(value: Any, kind: str) -> bool:
    """Whether a value is a group of that kind."""
    return isinstance(value, Group) and value.kind == kind


def _parts(value: Any, kind: str = "list") -> tuple[Any, ...]:
    return tuple(value.parts) if is_group(value, kind) else (value,)


def scalar(value: Any) -> Expr:
    """Return a value that must be one number or expression.

    Raises:
        UnreadableError: It is several.
    """
    if isinstance(value, Group | Relation):
        raise UnreadableError("a group of values stands where a number should")
    return value


def _times(one: Any, other: Any) -> Expr:
    return scalar(one) * scalar(other)


def _quotient(top: Expr, bottom: Expr) -> Expr:
    if bottom == 0:
        raise UnreadableError("a division by zero")
    return top / bottom


def _raised(base: Expr, exponent: Expr) -> Expr:
    large = exponent.is_number and abs(exponent.evalf(5)) > _LARGEST_EXPONENT
    if large or (base.is_number and exponent.is_number and abs(base.evalf(5)) > 10**50):
        raise UnreadableError("a power that is too large")
    return base**exponent


def _small(value: Expr) -> Expr:
    if not value.is_Integer or abs(value) > _LARGEST_EXPONENT:
        raise UnreadableError("no whole number of a reasonable size")
    return value


def _factorial(value: Expr) -> Expr:
    return sympy.factorial(_small(value))
