r"""Compares two answers as mathematics, whatever they are: expressions, tuples, sets, matrices, equations, words.

Runs in the child process alone.
"""

from __future__ import annotations

from typing import Any

import sympy

from levelhead.tasks.datasets.checkers.latex import Expr, Group, Relation, is_group, parse_answer, scalar
from levelhead.tasks.datasets.checkers.tokens import words_of


def same_answer(answer: str, reference: str) -> bool:
    """Whether two answers are the same mathematics.

    Raises:
        UnreadableError: One of them is no mathematics that can be read, and their words differ.
    """
    if words_of(answer) and words_of(answer) == words_of(reference):
        return True
    one, other = parse_answer(answer), parse_answer(reference)
    return _same(one, other) or _same(_bare(one), _bare(other))


def _bare(value: Any) -> Any:
    r"""Leave out what only names the answer: ``x =``, ``f(x) =``, ``x \in``."""
    if isinstance(value, Relation) and value.operators in (("=",), ("in",)):
        name = value.sides[0]
        called = getattr(name, "is_Mul", False) and all(part.is_Symbol for part in name.args) and len(name.args) == 2
        if getattr(name, "is_Symbol", False) or (called and value.operators == ("=",)):
            return value.sides[1]
    if is_group(value, "list"):
        return Group("list", tuple(_bare(part) for part in value.parts))
    return value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Relation) and isinstance(other, Relation):
        return _same_relation(one, other)
    if isinstance(one, Group) and isinstance(other, Group):
        return _same_group(one, other)
    if isinstance(one, Group | Relation) or isinstance(other, Group | Relation):
        return False
    return _equal(one, other)


def _same_group(one: Group, other: Group) -> bool:
    kinds = {one.kind, other.kind}
    # A set in braces and a list without are one; so are a tuple in either bracket only where the brackets agree.
    if one.kind != other.kind and kinds != {"set", "list"}:
        return False
    if len(one.parts) != len(other.parts):
        return False
    if one.kind in ("set", "list", "union"):
        rest = list(other.parts)
        for part in one.parts:
            match = next((candidate for candidate in rest if _same(part, candidate)), None)
            if match is None:
                return False
            rest.remove(match)
        return True
    return all(_same(a, b) for a, b in zip(one.parts, other.parts, strict=True))


def _same_relation(one: Relation, other: Relation) -> bool:
    flip = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
    turned = Relation(tuple(flip.get(op, op) for op in reversed(other.operators)), tuple(reversed(other.sides)))
    for candidate in (other, turned):
        if one.operators == candidate.operators and all(
            _same(a, b) for a, b in zip(one.sides, candidate.sides, strict=True)
        ):
            return True
    if one.operators == other.operators == ("=",):
        left = scalar(one.sides[0]) - scalar(one.sides[1])
        right = scalar(other.sides[0]) - scalar(other.sides[1])
        ratio = sympy.cancel(left / right) if right != 0 else sympy.nan
        return bool(ratio.is_number and ratio.is_finite and ratio != 0)
    return False


def _equal(one: Expr, other: Expr) -> bool:
    if one == other:
        return True
    if one.has(sympy.oo, sympy.zoo, sympy.nan) or other.has(sympy.oo, sympy.zoo, sympy.nan):
        return False
    difference = one - other
    if difference.is_Rational:
        return bool(difference == 0)
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    # Numerically, at fixed points and to far more digits than an answer has: a proof can take forever.
    for turn in range(4 if symbols else 1):
        point = {s: sympy.Rational(37 + 11 * turn + 7 * i, 29 + 13 * i + turn) for i, s in enumerate(symbols)}
        scale = abs(other.subs(point).evalf(50)) + abs(one.subs(point).evalf(50))
        if not abs(difference.subs(point).evalf(50)) <= sympy.Float("1e-30", 50) * (1 + scale):
            return False
    return True
