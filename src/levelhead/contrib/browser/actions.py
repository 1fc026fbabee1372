r"""What a policy may do to a page: a small grammar, parsed and never evaluated.

An answer is one call on its first non-empty line; lines after it are ignored.

    action := NAME "(" [argument {"," argument}] ")"
    argument := INTEGER | "'" characters "'" | '"' characters '"'

Inside quotes ``\\``, ``\'``, ``\"``, ``\n`` and ``\t`` are escapes.  An element's number may be quoted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Verb = Literal["click", "fill", "type", "press", "select", "focus", "hover", "scroll", "drag", "noop"]

ACTION_HELP = """\
click(n)
fill(n, 'text')
type(n, 'text')
press('Enter')
select(n, 'option')
focus(n)
hover(n)
scroll('down')
drag(n, m)
noop()"""
"""The action list of the system prompt: ``fill`` replaces a field's text, ``type`` adds to it."""

MAX_LENGTH = 1000
"""Characters of an action line; a longer one is refused unread."""

NAMED_KEYS = frozenset(
    {"Enter", "Tab", "Escape", "Backspace", "Delete", "Space", "Home", "End", "PageUp", "PageDown"}
    | {"ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"}
)
MODIFIERS = frozenset({"Control", "Shift", "Alt"})

_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*;?\s*", re.DOTALL)
_ARGUMENT = re.compile(r"""\s*(?:(?P<int>-?\d{1,6})|'(?P<one>(?:[^'\\]|\\.)*)'|"(?P<two>(?:[^"\\]|\\.)*)")\s*""")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t"}

Argument = int | str


class ActionError(ValueError):
    """An answer that is no action, or an action that the page cannot take; the message is shown to the policy."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do on a page.

    Attributes:
        verb: What.
        ref: Number of the element it is done to; ``None`` for the page as a whole.
        text: Text to write, option to pick, key to press, or direction to scroll.
        to: Number of the element to drag to.
        offset: Pixels right and down to drag by, where no element is given.
    """

    verb: Verb
    ref: int | None = None
    text: str = ""
    to: int | None = None
    offset: tuple[int, int] | None = None

    def __str__(self) -> str:
        """Write the action as the grammar reads it."""
        arguments = [] if self.ref is None else [str(self.ref)]
        if self.verb in ("fill", "type", "press", "select", "scroll"):
            arguments.append(_quote(self.text))
        if self.to is not None:
            arguments.append(str(self.to))
        if self.offset is not None:
            arguments += [str(pixels) for pixels in self.offset]
        return f"{self.verb}({', '.join(arguments)})"


def parse_action(text: str) -> Action:
    """Parse the line of text that names an action.

    Raises:
        ActionError: The text is no action of the grammar.
    """
    line = next((line for line in text.splitlines() if line.strip()), "").strip()
    if not line:
        raise ActionError("no action")
    if len(line) > MAX_LENGTH:
        raise ActionError("the action is too long")
    call = _CALL.fullmatch(line)
    if call is None:
        raise ActionError("not an action; write one such as click(1)")
    name, inside = call.groups()
    build = _BUILDERS.get(name)
    if build is None:
        raise ActionError(f"unknown action {name[:20]}; use one of {', '.join(_BUILDERS)}")
    return build(_arguments(inside))


def _arguments(inside: str) -> list[Argument]:
    arguments: list[Argument] = []
    position = 0
    while inside.strip():
        match = _ARGUMENT.match(inside, position)
        if match is None:
            raise ActionError("the arguments must be numbers or quoted text, with commas between")
        number, one, two = match.group("int", "one", "two")
        if number is not None:
            arguments.append(int(number))
        else:
            arguments.append(_ESCAPE.sub(lambda m: _ESCAPES.get(m[1], m[1]), one if one is not None else two))
        position = match.end()
        if position == len(inside):
            break
        if inside[position] != ",":
            raise ActionError("the arguments must be numbers or quoted text, with commas between")
        position += 1
    return arguments


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t")
    return f"'{escaped}'"


def _ref(argument: Argument, verb: str) -> int:
    if isinstance(argument, str) and re.fullmatch(r"\d{1,6}", argument, re.ASCII):
        return int(argument)
    if isinstance(argument, str) or argument < 0:
        raise ActionError(f"{verb} needs the number of an element first")
    return argument


def _count(verb: str, arguments: Sequence[Argument], usage: str, *allowed: int) -> None:
    if len(arguments) not in allowed:
        raise ActionError(f"{verb} is written {usage}")


def _on_element(verb: Literal["click", "focus", "hover"]) -> Callable[[list[Argument]], Action]:
    def build(arguments: list[Argument]) -> Action:
        _count(verb, arguments, f"{verb}(n)", 1)
        return Action(verb, _ref(arguments[0], verb))

    return build


def _with_text(verb: Literal["fill", "type", "select"]) -> Callable[[list[Argument]], Action]:
    def build(arguments: list[Argument]) -> Action:
        _count(verb, arguments, f"{verb}(n, 'text')", 2)
        return Action(verb, _ref(arguments[0], verb), str(arguments[1]))

    return build


def _press(arguments: list[Argument]) -> Action:
    _count("press", arguments, "press('Enter') or press(n, 'Enter')", 1, 2)
    key = str(arguments[-1])
    *modifiers, last = key.split("+") if len(key) > 1 else [key]
    if not set(modifiers) <= MODIFIERS or not (last in NAMED_KEYS or (len(last) == 1 and last.isprintable())):
        raise ActionError(f"unknown key {key[:20]}")
    return Action("press", _ref(arguments[0], "press") if len(arguments) == 2 else None, key)


def _scroll(arguments: list[Argument]) -> Action:
    _count("scroll", arguments, "scroll('down') or scroll(n, 'up')", 1, 2)
    direction = arguments[-1]
    if direction not in ("up", "down"):
        raise ActionError("scroll goes 'up' or 'down'")
    return Action("scroll", _ref(arguments[0], "scroll") if len(arguments) == 2 else None, str(direction))


def _drag(arguments: list[Argument]) -> Action:
    _count("drag", arguments, "drag(n, m) or drag(n, right, down)", 2, 3)
    ref = _ref(arguments[0], "drag")
    if len(arguments) == 2:
        return Action("drag", ref, to=_ref(arguments[1], "drag"))
    right, down = arguments[1:]
    if isinstance(right, str) or isinstance(down, str):
        raise ActionError("drag needs pixels to go right and down")
    return Action("drag", ref, offset=(right, down))


def _noop(arguments: list[Argument]) -> Action:
    _count("noop", arguments, "noop()", 0)
    return Action("noop")


_BUILDERS: dict[str, Callable[[list[Argument]], Action]] = {
    "click": _on_element("click"),
    "fill": _with_text("fill"),
    "type": _with_text("type"),
    "press": _press,
    "select": _with_text("select"),
    "focus": _on_element("focus"),
    "hover": _on_element("hover"),
    "scroll": _scroll,
    "drag": _drag,
    "noop": _noop,
}
