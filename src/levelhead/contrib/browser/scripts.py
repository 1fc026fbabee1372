"""Acting without reading: fixed scripts, which do the same on every page of a kind, and random actions."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping

from levelhead.contrib.browser.actions import Action
from levelhead.contrib.browser.oracles.find import text_fields, with_role
from levelhead.contrib.browser.view import Element, View

Script = Callable[[View, int], Action | None]
"""Page and step (from 1) to the action to take; ``None`` where the script has nothing to do, and gives up."""


def click_number(number: int) -> Script:
    """Return the script that always clicks the element of one number."""

    def script(view: View, _: int) -> Action | None:
        return Action("click", number) if number <= len(view.elements) else None

    return script


def first_button(view: View, _: int) -> Action | None:
    """Click the first button."""
    return _click(with_role(view, "button")[:1])


def last_button(view: View, _: int) -> Action | None:
    """Click the last button, which is the one that submits."""
    return _click(with_role(view, "button")[-1:])


def last_element(view: View, _: int) -> Action | None:
    """Click the last element."""
    return _click(list(view.elements)[-1:])


def each_in_turn(view: View, step: int) -> Action | None:
    """Click element 1, then 2, and so on."""
    return Action("click", step) if step <= len(view.elements) else None


def focus_field(view: View, _: int) -> Action | None:
    """Focus the first text field."""
    fields = text_fields(view)
    return Action("focus", fields[0].ref) if fields else None


def submit_nothing(view: View, step: int) -> Action | None:
    """Focus the first text field, type nothing, and click the last button."""
    return focus_field(view, step) if step == 1 else last_button(view, step)


def press_enter(_: View, __: int) -> Action:
    """Press Enter."""
    return Action("press", None, "Enter")


SCRIPTS: Mapping[str, Script] = {
    **{f"click({number})": click_number(number) for number in range(1, 5)},
    "click the first button": first_button,
    "click the last button": last_button,
    "click the last element": last_element,
    "click each element in turn": each_in_turn,
    "focus the first field": focus_field,
    "focus the first field, click the last button": submit_nothing,
    "press('Enter')": press_enter,
}
"""Every script by what it does; of equally good ones the first is preferred."""


def random_script(seed: str) -> Script:
    """Return a script that takes a random action that the page can take, another one each step.

    First a verb is drawn evenly from those that act on what is there (click, focus, fill, select, press), then what it
    needs: an element or an option of a list evenly, the text for a field evenly from the words of the goal.

    Args:
        seed: Fixes the draws.
    """
    draw = random.Random(seed)

    def script(view: View, _: int) -> Action:
        acts: list[Callable[[], Action]] = [lambda: Action("press", None, "Enter")]
        elements, fields = view.elements, text_fields(view)
        offers = [(element, option) for element in elements for option in element.options]
        if elements:
            acts.append(lambda: Action("click", draw.choice(elements).ref))
            acts.append(lambda: Action("focus", draw.choice(elements).ref))
        if fields:
            words = re.findall(r"\w+", view.goal) or [""]
            acts.append(lambda: Action("fill", draw.choice(fields).ref, draw.choice(words)))
        if offers:
            acts.append(lambda: _select(*draw.choice(offers)))
        return draw.choice(acts)()

    return script


def _click(elements: list[Element]) -> Action | None:
    return Action("click", elements[0].ref) if elements else None


def _select(element: Element, option: str) -> Action:
    return Action("select", element.ref, option)
