"""What a policy sees of a page: lines of text and numbered elements, and how they are written out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from levelhead.contrib.browser.actions import ACTION_HELP
from levelhead.records import ChatMessage

SYSTEM_PROMPT = f"""\
You operate a web page. Its elements are shown as [number] role "name". Answer with one action, such as:
{ACTION_HELP}"""
"""The system message of every turn."""


@dataclass(frozen=True, slots=True)
class Element:
    """Something on the page that can be acted on.

    Attributes:
        ref: Its number in this view, counted from 1 in reading order.
        role: ``button``, ``textbox``, ``checkbox``, ``item`` (anything else that takes clicks), ...
        name: Text on it, its label, or for a drawn shape its colour, size and place.
        value: What it holds; a password shows as stars.
        states: ``checked``, ``selected``, ``expanded``, ``collapsed``, ``disabled``, ``readonly``, ``focused``, ...
        options: What a list offers.
    """

    ref: int
    role: str
    name: str = ""
    value: str = ""
    states: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Write the element as the policy reads it."""
        words = [f"[{self.ref}] {self.role}"]
        if self.name:
            words.append(_quote(self.name))
        if self.value:
            words.append(f"value={_quote(self.value)}")
        if self.options:
            words.append("options=" + "|".join(self.options))
        return " ".join((*words, *self.states))


@dataclass(frozen=True, slots=True)
class Line:
    """One visual line: text and elements in reading order, indented by ``depth``."""

    depth: int
    parts: tuple[str | Element, ...]

    def __str__(self) -> str:
        """Write the line as the policy reads it."""
        return " " * self.depth + " ".join(str(part) for part in self.parts)


@dataclass(frozen=True, slots=True)
class View:
    """A page at one moment.

    Attributes:
        goal: What is to be done.
        lines: The page in reading order.
        done: Whether the page has ended the episode.
        reward: The page's raw reward, from -1 to 1, without decay over time; 0 until done.
        reason: Why the page gave that reward, where it says so.
        stray: Whether the page is not a MiniWoB++ page any more.
    """

    goal: str = ""
    lines: tuple[Line, ...] = ()
    done: bool = False
    reward: float = 0.0
    reason: str = ""
    stray: bool = False

    @property
    def elements(self) -> tuple[Element, ...]:
        """All numbered elements, in order."""
        return tuple(part for line in self.lines for part in line.parts if isinstance(part, Element))

    @property
    def text(self) -> str:
        """The whole page as text, however long."""
        return "\n".join(str(line) for line in self.lines)

    def render(self, limit: int) -> str:
        """Write at most ``limit`` characters of the page in whole lines, with a mark where it was cut."""
        text = self.text
        if len(text) <= limit:
            return text
        lines: list[str] = []
        room = limit - len(_cut_mark(len(self.lines)))
        for line in map(str, self.lines):
            if len(line) + 1 > room:
                break
            room -= len(line) + 1
            lines.append(line)
        if not lines:
            return text[: room - 1] + "\n" + _cut_mark(len(self.lines))
        return "\n".join((*lines, _cut_mark(len(self.lines) - len(lines))))


def read_view(raw: Mapping[str, Any]) -> View:
    """Read what ``look`` in ``js/look.js`` returned."""
    if raw["stray"]:
        return View(stray=True)
    lines = tuple(Line(line["depth"], tuple(_part(part) for part in line["parts"])) for line in raw["lines"])
    return View(raw["goal"], lines, raw["done"], float(raw["reward"]), str(raw["reason"]))


def turn_messages(view: View, step: int, error: str, limit: int) -> list[ChatMessage]:
    """Return the messages of a turn: system prompt, step number from 1, goal, the last action's error, and the page."""
    lines = [f"Step {step}", f"Goal: {view.goal}"]
    if error:
        lines.append(f"Error: {error}")
    lines.append(f"Page:\n{view.render(limit)}")
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": "\n".join(lines)}]


def _part(raw: str | Mapping[str, Any]) -> str | Element:
    if isinstance(raw, str):
        return raw
    return Element(raw["ref"], raw["role"], raw["name"], raw["value"], tuple(raw["states"]), tuple(raw["options"]))


def _quote(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def _cut_mark(lines: int) -> str:
    return f"... ({lines} more lines)"
