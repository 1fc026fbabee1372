"""Pages with something to work out."""

from __future__ import annotations

import re

from levelhead.contrib.browser.actions import Action
from levelhead.contrib.browser.oracles.find import Oracle, fill, matched, one_of, press_button, text_fields
from levelhead.contrib.browser.oracles.forms import answer_with
from levelhead.contrib.browser.view import View


def texts(view: View) -> list[str]:
    """Return the texts of the page."""
    return [part for line in view.lines for part in line.parts if isinstance(part, str)]


def arithmetic(view: View) -> str:
    """Return the value of ``a op b``."""
    a, sign, b = matched(r"(-?\d+) ([-+x]) (-?\d+)", " ".join(texts(view)))
    return str({"+": int(a) + int(b), "-": int(a) - int(b), "x": int(a) * int(b)}[sign])


def algebra(view: View) -> str:
    """Return x in ``x op b = c`` or ``a op x = c``."""
    a, sign, b, c = matched(r"(x|-?\d+) ([-+]) (x|-?\d+) = (-?\d+)", " ".join(texts(view)))
    if a == "x":
        return str(int(c) - int(b) if sign == "+" else int(c) + int(b))
    return str(int(c) - int(a) if sign == "+" else int(a) - int(c))


def guess_number(view: View, _: int) -> Action:
    """Halve what remains between 0 and 9, told by the last answer alone whether to go up or down.

    The page shows the last guess and its verdict, not those before, so each guess is the middle of what the path of
    halvings to it left over.
    """
    field = one_of(text_fields(view))
    hint = re.search(r"(higher|lower) than (\d+)", " ".join(texts(view)))
    low, high = 0, 9
    if hint is not None:
        low, high = _remaining(int(hint[2]), up=hint[1] == "higher")
    middle = str((low + high) // 2)
    return press_button(view, "Submit") if field.value == middle else fill(field, middle)


def generate_number(view: View, _: int) -> Action:
    """Generate until the number is as asked, then submit."""
    shown = " ".join(texts(view))
    if re.fullmatch(r"-?\d+", shown) and _as_asked(view.goal, int(shown)):
        return press_button(view, "Submit")
    return press_button(view, "Generate")


def _remaining(last: int, *, up: bool) -> tuple[int, int]:
    low, high = 0, 9
    while (middle := (low + high) // 2) != last:
        if low >= high:
            raise LookupError(f"{last} is no halving of 0 to 9")
        low, high = (middle + 1, high) if last > middle else (low, middle - 1)
    return (last + 1, high) if up else (low, last - 1)


def _as_asked(goal: str, number: int) -> bool:
    if "even" in goal or "odd" in goal:
        return number % 2 == ("odd" in goal)
    side, bound = matched(r"(greater|less) than (-?\d+)", goal)
    return number > int(bound) if side == "greater" else number < int(bound)


ORACLES: dict[str, Oracle] = {
    "generate-number": generate_number,
    "guess-number": guess_number,
    "simple-algebra": answer_with(algebra),
    "simple-arithmetic": answer_with(arithmetic),
}
