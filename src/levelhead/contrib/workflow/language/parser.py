"""From text to tree, and back.

Nothing is repaired: what the grammar does not say is an error that names column and remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import resources
from typing import Any

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken

from levelhead.contrib.workflow.language.tree import (
    Call,
    Chain,
    Conditional,
    Done,
    Loop,
    Node,
    Parallel,
    WorkflowError,
    chain,
)
from levelhead.contrib.workflow.operators import OPERATORS, nearest_operator

LONGEST = 2000
"""Characters; a longer text is refused unread."""

DEEPEST = 40
"""Brackets within brackets; a text nested deeper is refused unread."""

_WORDS = {
    "ARROW": "'->'",
    "QUESTION": "'?'",
    "COLON": "':'",
    "OPEN": "'['",
    "CLOSE": "']'",
    "COMMA": "','",
    "LEFT": "'('",
    "RIGHT": "')'",
    "STAR": "'*'",
    "DONE": "'done'",
    "NAME": "an operator",
    "NUMBER": "a number",
    "$END": "the end",
}


def parse(text: str) -> Node:
    """Parse the text of a workflow.

    Raises:
        WorkflowError: The text is no workflow (``kind`` is ``syntax``), with the column and what was expected there.
    """
    if len(text) > LONGEST:
        raise WorkflowError("syntax", LONGEST + 1, f"longer than {LONGEST} characters")
    if not text.strip():
        raise WorkflowError("syntax", 1, "the text is empty", ["a workflow"])
    _check_nesting(text)
    try:
        # An embedded transformer builds the tree bottom-up while parsing, and passes our own errors through.
        tree: Any = _parser().parse(text)
    except UnexpectedInput as error:
        raise _explain(text, error) from None
    node: Node = tree
    return node


def _check_nesting(text: str) -> None:
    level = 0
    for column, character in enumerate(text, start=1):
        level += (character in "([") - (character in ")]")
        if level > DEEPEST:
            raise WorkflowError("syntax", column, f"nested deeper than {DEEPEST} brackets")


def _explain(text: str, error: UnexpectedInput) -> WorkflowError:
    accepts: Callable[[], set[str]] = error.interactive_parser.accepts
    expected = _words(accepts())
    if isinstance(error, UnexpectedToken):
        if error.token.type == "$END":
            # Lark places the end at the last token it read; for a reader it is the place after it.
            return WorkflowError("syntax", len(text.rstrip()) + 1, "the text ends here", expected)
        return WorkflowError("syntax", (error.token.start_pos or 0) + 1, f"found {str(error.token)!r}", expected)
    position: int = getattr(error, "pos_in_stream", 0)
    return WorkflowError("syntax", position + 1, f"found {text[position : position + 1]!r}", expected)


def _words(terminals: Iterable[str]) -> list[str]:
    accepted = set(terminals)
    return [word for terminal, word in _WORDS.items() if terminal in accepted]


@lru_cache(maxsize=1)
def _parser() -> Lark:
    grammar = resources.files(__package__).joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", transformer=_ToTree())


class _ToTree(Transformer[Token, Node]):
    """Called by the parser for every rule as soon as it is complete."""

    def start(self, items: list[Node]) -> Node:
        return items[0]

    def chain(self, items: list[Node | Token]) -> Node:
        return chain(*_nodes(items))

    def conditional(self, items: list[Node | Token]) -> Node:
        test, fault, clear = _nodes(items)
        if not isinstance(test, Call):
            raise TypeError("the grammar lets only an operator stand before '?'")
        return Conditional(test, fault, clear)

    def call(self, items: list[Token]) -> Node:
        (name,) = items
        column = (name.start_pos or 0) + 1
        if name not in OPERATORS:
            near = nearest_operator(name)
            hint = [f"{near!r}"] if near else ["one of " + ", ".join(OPERATORS)]
            raise WorkflowError("syntax", column, f"there is no operator {str(name)!r}", hint)
        return Call(str(name), column)

    def done(self, items: list[Token]) -> Node:
        return Done((items[0].start_pos or 0) + 1)

    def parallel(self, items: list[Node | Token]) -> Node:
        return Parallel(tuple(_nodes(items)), _column(items))

    def loop(self, items: list[Node | Token]) -> Node:
        (body,) = _nodes(items)
        return Loop(body, int(str(items[-1])), _column(items))


def _nodes(items: list[Node | Token]) -> list[Node]:
    return [item for item in items if not isinstance(item, Token)]


def _column(items: list[Node | Token]) -> int:
    first = items[0]
    return (first.start_pos or 0) + 1 if isinstance(first, Token) else 0


def to_text(node: Node) -> str:
    """Print a workflow on one line, with single spaces and no bracket that changes nothing."""
    match node:
        case Call(operator):
            return operator
        case Done():
            return "done"
        case Chain(steps):
            inner = [_in_brackets(step) if isinstance(step, Conditional) else to_text(step) for step in steps[:-1]]
            return " -> ".join([*inner, to_text(steps[-1])])
        case Parallel(branches):
            return f"[{', '.join(to_text(branch) for branch in branches)}]"
        case Loop(body, times):
            return f"({to_text(body)}) * {times}"
        case Conditional(test, fault, clear):
            return f"{to_text(test)} ? {_unit(fault)} : {_unit(clear)}"


def _unit(node: Node) -> str:
    return _in_brackets(node) if isinstance(node, Chain | Conditional) else to_text(node)


def _in_brackets(node: Node) -> str:
    return f"({to_text(node)})"
