"""Between BrowserGym's observations and actions and ours.

BrowserGym shows a page as Chromium's accessibility tree, whose nodes carry a ``browsergym_id``, and takes actions as
calls such as ``click('12')``.  The policy sees and writes what it does in the browser task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levelhead.contrib.browser.actions import Action, ActionError
from levelhead.contrib.browser.view import Element, Line, View

NUMBERED = frozenset(
    {"button", "link", "textbox", "searchbox", "checkbox", "radio", "combobox", "listbox", "option", "menuitem"}
    | {"menuitemcheckbox", "menuitemradio", "tab", "slider", "spinbutton", "switch", "treeitem"}
)
"""Roles of elements that can be acted on; others are numbered where BrowserGym says that they take clicks."""

_UNSEEN = frozenset({"InlineTextBox", "none", "LineBreak"})
_CONTAINERS = frozenset({"generic", "RootWebArea", "LabelText", "paragraph", "list", "listitem"})
_STATES = ("checked", "selected", "pressed", "expanded", "disabled", "focused")
_SCROLL = 300


def view_of(observation: Mapping[str, Any]) -> tuple[View, list[str]]:
    """Read an observation.

    Returns:
        The page, and the ``browsergym_id`` of each numbered element, by its number less one.
    """
    reader = _Reader(observation)
    return View(goal=str(observation.get("goal") or ""), lines=tuple(reader.lines)), reader.ids


def call_of(action: Action, ids: Sequence[str]) -> str:
    """Write an action as BrowserGym's calls, one a line; what the policy wrote appears in them as quoted text only.

    Raises:
        ActionError: There is no element of that number, or BrowserGym has no such action.
    """

    def bid(ref: int | None) -> str:
        if ref is None or not 1 <= ref <= len(ids):
            raise ActionError(f"there is no element {ref}")
        return repr(ids[ref - 1])

    text = repr(action.text)
    match action.verb:
        case "click" | "focus" | "hover":
            return f"{action.verb}({bid(action.ref)})"
        case "fill":
            return f"fill({bid(action.ref)}, {text})"
        case "type":
            return f"focus({bid(action.ref)})\nkeyboard_type({text})"
        case "press":
            return f"keyboard_press({text})" if action.ref is None else f"press({bid(action.ref)}, {text})"
        case "select":
            return f"select_option({bid(action.ref)}, {text})"
        case "scroll":
            return f"scroll(0, {_SCROLL if action.text == 'down' else -_SCROLL})"
        case "drag":
            if action.to is None:
                raise ActionError("drag from one element to another: drag(n, m)")
            return f"drag_and_drop({bid(action.ref)}, {bid(action.to)})"
        case "noop":
            return "noop()"


class _Reader:
    def __init__(self, observation: Mapping[str, Any]) -> None:
        nodes = observation["axtree_object"]["nodes"]
        self.lines: list[Line] = []
        self.ids: list[str] = []
        self._nodes: dict[str, Mapping[str, Any]] = {str(node["nodeId"]): node for node in nodes}
        self._about: Mapping[str, Mapping[str, Any]] = observation.get("extra_element_properties") or {}
        if nodes:
            self._visit(str(nodes[0]["nodeId"]), 0, "")

    def _visit(self, key: str, depth: int, said: str) -> None:
        node = self._nodes.get(key)
        if node is None:
            return
        role, name = _value(node, "role"), _value(node, "name")
        below = depth
        if not node.get("ignored") and role not in _UNSEEN:
            line = self._line(node, role, name, said)
            if line is not None:
                self.lines.append(Line(depth, (line,)))
                below = depth + 1
                said = line.name if isinstance(line, Element) else line
        for child in node.get("childIds", ()):
            self._visit(str(child), below, said)

    def _line(self, node: Mapping[str, Any], role: str, name: str, said: str) -> str | Element | None:
        bid = node.get("browsergym_id")
        about = self._about.get(str(bid), {})
        if about.get("visibility") == 0:
            return None
        clickable = bool(about.get("clickable"))
        if clickable and role in _CONTAINERS:
            name = self._text_only(node)
            role = "item" if name else role
        if bid is not None and (role in NUMBERED or (clickable and role not in _CONTAINERS)):
            self.ids.append(str(bid))
            states = tuple(
                "collapsed" if state == "expanded" and not on else state
                for state, on in _properties(node).items()
                if on or state == "expanded"
            )
            return Element(len(self.ids), role, name, _value(node, "value"), states)
        if role == "StaticText":
            return name if name.strip() and name.strip() not in said else None
        return f"{role} {name}".strip() if name and role not in _CONTAINERS else None

    def _text_only(self, node: Mapping[str, Any]) -> str:
        """Return the text of a node that holds nothing else, and nothing where something in it can be acted on."""
        texts = []
        for key in node.get("childIds", ()):
            child = self._nodes.get(str(key), {})
            role = _value(child, "role")
            about = self._about.get(str(child.get("browsergym_id")), {})
            if role in NUMBERED or (about.get("clickable") and role not in ("StaticText", *_UNSEEN)):
                return ""
            if role != "InlineTextBox":
                texts.append(_value(child, "name") if role == "StaticText" else self._text_only(child))
        return " ".join(text for text in texts if text)


def _value(node: Mapping[str, Any], field: str) -> str:
    entry = node.get(field)
    return str(entry.get("value", "")).strip() if isinstance(entry, Mapping) else ""


def _properties(node: Mapping[str, Any]) -> dict[str, bool]:
    properties = {str(one.get("name")): one.get("value", {}).get("value") for one in node.get("properties", ())}
    return {state: properties[state] in (True, "true") for state in _STATES if state in properties}
