"""Finding things on a page, in the goal, and the next thing to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from levelhead.contrib.browser.actions import Action
from levelhead.contrib.browser.view import Element, View

Oracle = Callable[[View, int], Action]
"""Page and step (from 1) to the action to take."""


def quoted(goal: str) -> list[str]:
    """Return what stands between double quotes in a goal."""
    return re.findall(r'"(.*?)"', goal)


def matched(pattern: str, goal: str) -> tuple[str, ...]:
    """Return the groups of a pattern in a goal.

    Raises:
        LookupError: The goal is worded in some other way.
    """
    match = re.search(pattern, goal)
    if match is None:
        raise LookupError(f"unexpected goal: {goal}")
    return match.groups()


def with_role(view: View, *roles: str) -> list[Element]:
    """Return the elements of some roles, in order."""
    return [element for element in view.elements if element.role in roles]


def text_fields(view: View) -> list[Element]:
    """Return the fields that take text."""
    return with_role(view, "textbox", "textarea", "password", "date", "time", "spinbutton")


def named(view: View, name: str, *roles: str) -> Element:
    """Return the first element of a name, among some roles or all.

    Raises:
        LookupError: There is none.
    """
    for element in view.elements:
        if element.name == name and (not roles or element.role in roles):
            return element
    raise LookupError(f"nothing is called {name!r}")


def one_of(elements: Sequence[Element], index: int = 0) -> Element:
    """Return an element by position.

    Raises:
        LookupError: There are not that many.
    """
    if not -len(elements) <= index < len(elements):
        raise LookupError(f"there is no element at {index}")
    return elements[index]


def click(element: Element) -> Action:
    """Return the click on an element."""
    return Action("click", element.ref)


def fill(element: Element, text: str) -> Action:
    """Write into a field, over what it holds."""
    return Action("fill", element.ref, text)


def press_button(view: View, *names: str) -> Action:
    """Click the button of one of some names, whatever its case; the first button where none is given.

    Raises:
        LookupError: There is none.
    """
    buttons = with_role(view, "button")
    wanted = [name.lower() for name in names]
    for button in buttons:
        if not wanted or button.name.lower() in wanted:
            return click(button)
    raise LookupError(f"no button is called {' or '.join(names)}")


def fill_all(pairs: Iterable[tuple[Element, str]]) -> Action | None:
    """Write the first text that is not yet in its field; ``None`` when all are."""
    for field, text in pairs:
        held = text if field.role != "password" else "*" * len(text)
        if field.value != held:
            return fill(field, text)
    return None


def scroll_down(view: View) -> Action:
    """Scroll the first area that has more below down.

    Raises:
        LookupError: There is none.
    """
    areas = [area for area in with_role(view, "scroll area") if "more below" in area.states]
    return Action("scroll", one_of(areas).ref, "down")


def check_all(boxes: Iterable[tuple[Element, bool]]) -> Action | None:
    """Click the first box that is not as it should be; ``None`` when all are."""
    for box, wanted in boxes:
        if ("checked" in box.states) != wanted:
            return click(box)
    return None


def texts(view: View) -> list[str]:
    """Return the texts of the page."""
    return [part for line in view.lines for part in line.parts if isinstance(part, str)]


def ordinal(text: str) -> int:
    """Read ``3rd`` as 2, an index."""
    return int(matched(r"(\d+)", text)[0]) - 1


def fields_by_label(view: View) -> dict[str, Element]:
    """Return each text field under its label: the text before it, or after it where a field comes first."""
    parts = [part for line in view.lines for part in line.parts]
    fields = text_fields(view)
    if parts and parts[0] in fields:
        parts.reverse()
    field_by_label: dict[str, Element] = {}
    label = ""
    for part in parts:
        if isinstance(part, str):
            label = part.strip(" :|").lower()
        elif part in fields:
            field_by_label[part.name.strip(" :").lower() or label] = part
    return field_by_label
