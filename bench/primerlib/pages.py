"""Pages as a browser task would show them, made without a browser: numbered elements, a goal, and the action."""

from __future__ import annotations

import random

from primerlib.words import COMMON, NAMES, THINGS, VERBS, invent, pick

_CLICK_GOALS = (
    'Click on the "{0}" button.',
    'Click the button "{0}".',
    'Press "{0}".',
    'Choose the "{0}" button.',
    'Click on the "{0}" button.',
)
_ENTER_GOALS = (
    'Enter "{0}" into the text field and press {1}.',
    'Type "{0}" in the textbox and click {1}.',
    'Write "{0}" into the field, then press {1}.',
)
_TREE_GOALS = (
    'Open the drawers and click on the item named "{0}".',
    'Find and click on the folder or file named "{0}".',
    'Look through the list. Click on the entry named "{0}".',
)
_LABELS = tuple(word for word in (*THINGS, *VERBS, *COMMON) if 2 < len(word) < 9)


def page_items(rng: random.Random) -> list[tuple[str, str]]:
    """Return (prompt, action) pairs of the turns of one episode, the numbers of elements given in reading order."""
    kind = rng.random()
    if kind < 0.45:
        return _buttons(rng)
    if kind < 0.8:
        return _tree(rng)
    return _entry(rng)


def list_page(rng: random.Random) -> tuple[list[str], dict[str, str]]:
    """Lines of a page of either kind, and the number of each element whose label stands there once."""
    if rng.random() < 0.5:
        return _button_page(rng)
    lines, names, _ = _tree_page(rng)
    numbers = {name: str(number) for number, name in enumerate(names, start=1) if names.count(name) == 1}
    return lines, numbers


def _prompt(step: int, goal: str, lines: list[str]) -> str:
    return "\n".join((f"Step {step}", f"Goal: {goal}", "Page:", *lines))


def _words(rng: random.Random, count: int) -> str:
    return " ".join(invent(rng) if rng.random() < 0.5 else rng.choice(COMMON) for _ in range(count))


def _label(rng: random.Random) -> str:
    label = pick(rng, _LABELS)
    return label.capitalize() if rng.random() < 0.5 else label


def _buttons(rng: random.Random) -> list[tuple[str, str]]:
    """A page of buttons, fields and other text; the goal names one button, whatever its case."""
    lines, numbers = _button_page(rng)
    asked = rng.sample(list(numbers), min(2, len(numbers)))
    return [(_prompt(1, rng.choice(_CLICK_GOALS).format(label), lines), f"click({numbers[label]})") for label in asked]


def _button_page(rng: random.Random) -> tuple[list[str], dict[str, str]]:
    """Lines of a page, and the number of each of its buttons by label."""
    numbers: dict[str, str] = {}
    lines, pieces = [], []
    number = 0
    for _ in range(rng.randint(2, 6)):
        what = rng.random()
        if what < 0.5 or not numbers:
            label = _label(rng)
            while label.lower() in (other.lower() for other in numbers):
                label = _label(rng)
            number += 1
            numbers[label] = str(number)
            pieces.append(f'[{number}] button "{label}"')
        elif what < 0.75:
            number += 1
            pieces.append(f"{_words(rng, 2)}: [{number}] textbox" if rng.random() < 0.5 else f"[{number}] textbox")
        else:
            pieces.append(_words(rng, 3) + rng.choice(("", ",")))
        if rng.random() < 0.8:
            lines.append(" ".join(pieces))
            pieces = []
    if pieces:
        lines.append(" ".join(pieces))
    return lines, numbers


def _tree(rng: random.Random) -> list[tuple[str, str]]:
    """A list whose entries open: click the one that is asked for, or open the next that is closed."""
    lines, names, closed = _tree_page(rng)
    step = rng.randint(1, 4)
    goal = rng.choice(_TREE_GOALS)
    visible = rng.randrange(len(names))
    first = names.index(names[visible]) + 1
    items = [(_prompt(step, goal.format(names[visible]), lines), f"click({first})")]
    hidden = rng.choice(NAMES) if rng.random() < 0.6 else _label(rng)
    if closed and hidden not in names:
        items.append((_prompt(step, goal.format(hidden), lines), f"click({closed[0]})"))
    return items


def _tree_page(rng: random.Random) -> tuple[list[str], list[str], list[int]]:
    """Lines of a list, the names in it, and the numbers of its closed entries."""
    names = (
        rng.sample(NAMES, rng.randint(2, 8)) if rng.random() < 0.6 else [_label(rng) for _ in range(rng.randint(2, 8))]
    )
    lines, closed = [], []
    depth = 0
    for number, name in enumerate(names, start=1):
        state = rng.choice(("", "", " collapsed", " collapsed", " expanded"))
        if state == " collapsed":
            closed.append(number)
        lines.append(f'{" " * depth}[{number}] item "{name}"{state}')
        if state == " expanded":
            depth += 1
        elif depth and rng.random() < 0.4:
            depth -= 1
    return lines, names, closed


def _entry(rng: random.Random) -> list[tuple[str, str]]:
    """A field to fill and a button to press, in two turns; or a field to focus."""
    field, button = (1, 2) if rng.random() < 0.7 else (2, 1)
    label, value = _label(rng).capitalize(), rng.choice(NAMES) if rng.random() < 0.5 else invent(rng).capitalize()
    written = {field: "textbox", button: f'button "{label}"'}

    def page(state: str) -> list[str]:
        parts = [f"[{i}] {written[i]}{state if i == field else ''}" for i in (1, 2)]
        return [" ".join(parts)] if rng.random() < 0.5 else parts

    if rng.random() < 0.2:
        goal = rng.choice(("Focus into the textbox.", "Focus the text field.", "Put the cursor into the textbox."))
        return [(_prompt(1, goal, page("")), f"focus({field})")]
    goal = rng.choice(_ENTER_GOALS).format(value, label)
    return [
        (_prompt(1, goal, page("")), f"fill({field}, '{value}')"),
        (_prompt(2, goal, page(f' value="{value}" focused')), f"click({button})"),
    ]
