"""Pages with something to write: forms, puzzles whose result is entered, the mail client."""

from __future__ import annotations

import re
from collections.abc import Callable

from levelhead.contrib.browser.actions import Action
from levelhead.contrib.browser.oracles.find import (
    Oracle,
    check_all,
    click,
    fields_by_label,
    fill,
    fill_all,
    matched,
    named,
    one_of,
    ordinal,
    press_button,
    quoted,
    scroll_down,
    text_fields,
    texts,
    with_role,
)
from levelhead.contrib.browser.view import Element, View


def answer_with(answer: Callable[[View], str]) -> Oracle:
    """Make an oracle that writes an answer into the last free text field and submits it."""

    def oracle(view: View, _: int) -> Action:
        fields = [field for field in text_fields(view) if "readonly" not in field.states]
        return fill_all([(one_of(fields, -1), answer(view))]) or press_button(view, "Submit")

    return oracle


def quoted_text(view: View) -> str:
    """Return the text in quotes, in the case that is asked for."""
    text = quoted(view.goal)[0]
    if "upper case" in view.goal:
        return text.upper()
    return text.lower() if "lower case" in view.goal else text


def a_date(view: View) -> str:
    """Return a date as a date field takes it."""
    month, day, year = matched(r"(\d\d)/(\d\d)/(\d{4})", view.goal)
    return f"{year}-{month}-{day}"


def a_time(view: View) -> str:
    """Return a time as a time field takes it."""
    hour, minute, half = matched(r"(\d+):(\d\d) ([AP]M)", view.goal)
    return f"{int(hour) % 12 + 12 * (half == 'PM'):02d}:{minute}"


def nth_word(view: View) -> str:
    """Return the word of a number."""
    words = texts(view)[0].split()
    index = ordinal(view.goal)
    if index >= len(words):
        raise LookupError(f"the text has {len(words)} words")
    return words[index].strip(",.")


def copy_text(view: View, _: int) -> Action:
    """Copy a text area's text into the text field."""
    areas = with_role(view, "textarea")
    area = one_of(areas, ordinal(view.goal) if len(areas) > 1 else 0)
    return fill_all([(one_of(with_role(view, "textbox")), area.value)]) or press_button(view, "Submit")


def password_twice(view: View, _: int) -> Action:
    """Write a password into both fields."""
    secret = quoted(view.goal)[0]
    return fill_all((field, secret) for field in text_fields(view)) or press_button(view, "Submit")


def login(view: View, _: int) -> Action:
    """Write user name and password, and log in; a popup that gets in the way is cancelled."""
    if any(button.name == "Cancel" for button in with_role(view, "button")):
        return press_button(view, "Cancel")
    return fill_all(zip(text_fields(view), quoted(view.goal), strict=True)) or press_button(view, "Login", "OK")


def checkboxes(view: View, _: int) -> Action:
    """Check the boxes that the goal lists, then submit."""
    listed = matched(r"Select (.*) and click", view.goal)[0].split(", ")
    boxes = [(box, box.name in listed) for box in with_role(view, "checkbox")]
    return check_all(boxes) or press_button(view, "Submit")


def radio(view: View, _: int) -> Action:
    """Choose the radio button that the goal names, then submit."""
    option = named(view, matched(r"Select (.*) and click", view.goal)[0], "radio")
    return press_button(view, "Submit") if "checked" in option.states else click(option)


def choose(view: View, _: int) -> Action:
    """Choose the goal's entry from the drop-down list, then submit."""
    wanted = matched(r"Select (.*) from the list", view.goal)[0]
    options = one_of(with_role(view, "combobox"))
    return press_button(view, "Submit") if options.value == wanted else Action("select", options.ref, wanted)


def choose_several(view: View, _: int) -> Action:
    """Choose several from a list that takes several."""
    wanted = matched(r"Select (.*) from the scroll list", view.goal)[0].split(", ")
    options = one_of(with_role(view, "listbox"))
    missing = [name for name in wanted if name not in options.value.split(", ")]
    return Action("select", options.ref, missing[0]) if missing else press_button(view, "Submit")


def two_table_values(view: View, _: int) -> Action:
    """Write the value of each label."""
    table = {name.lower(): value for name, value in _table(view).items()}
    pairs = [(field, table[label]) for label, field in fields_by_label(view).items()]
    return fill_all(pairs) or press_button(view, "Submit")


def movie_search(view: View, _: int) -> Action:
    """Write genre, director and year into the fields so labelled, whatever their order and wording."""
    genre, director, year = matched(r"for (.*) movies directed by (.*) from year (\d+)", view.goal)
    pairs = []
    for label, field in fields_by_label(view).items():
        wanted = genre if "genre" in label else director if "director" in label else year
        pairs.append((field, wanted))
    go = one_of([element for element in view.elements if element.role in ("button", "item")], -1)
    return fill_all(pairs) or click(go)


def radio_and_text(view: View, _: int) -> Action:
    """Check the nth radio button and write a number into the mth text field."""
    nth, number, mth = matched(r'the (\d\w+) radio .* number "(-?\d+)" into the (\d\w+) textbox', view.goal)
    button = one_of(with_role(view, "radio"), ordinal(nth))
    if "checked" not in button.states:
        return click(button)
    return fill_all([(one_of(text_fields(view), ordinal(mth)), number)]) or press_button(view, "Submit")


def widget(view: View, _: int) -> Action:
    """Click the first element of a kind."""
    kind = quoted(view.goal)[0]
    return click(one_of(with_role(view, "textbox" if kind == "text" else kind)))


def spinner(view: View, _: int) -> Action:
    """Write a value into a spinner."""
    value = matched(r"Select (-?\d+) with", view.goal)[0]
    return fill_all([(one_of(text_fields(view)), value)]) or press_button(view, "Submit")


def _table(view: View) -> dict[str, str]:
    rows = [text.split(" | ") for text in texts(view) if " | " in text]
    return {row[0]: row[1] for row in rows}


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


def mail(view: View, _: int) -> Action:
    """Do with a sender's mail what the goal says."""
    match = re.search(r"email by (.*?) and (.*)", view.goal)
    if match is None:
        raise LookupError(f"unexpected goal: {view.goal}")
    sender, task = match.groups()
    if "trash" in task or "delete" in task or "star" in task:
        return _icon(view, sender, "trash" if "trash" in task or "delete" in task else "star")
    if "reply" in task:
        return _write(view, sender, "Reply", re.findall(r'"(.*)"', task)[0])
    return _write(view, sender, "Forward", re.findall(r"to (.*)\.", task)[0])


def _icon(view: View, sender: str, icon: str) -> Action:
    """Click the icon that follows the row of a sender, scrolling down while the sender is not in sight."""
    passed = False
    for line in view.lines:
        for part in line.parts:
            if isinstance(part, Element):
                passed = passed or part.name.split(" ")[0] == sender
                if passed and part.name == icon:
                    return click(part)
    return scroll_down(view)


def _write(view: View, sender: str, how: str, text: str) -> Action:
    """Open the mail, click Reply or Forward, write the text or the name, send."""
    fields = text_fields(view)
    if fields:
        return fill_all([(fields[0], text)]) or click(one_of([e for e in view.elements if "send" in e.name]))
    if any(element.name == how for element in view.elements):
        return click(named(view, how))
    for element in view.elements:
        if element.name.split(" ")[0] == sender:
            return click(element)
    return scroll_down(view)


ORACLES: dict[str, Oracle] = {
    "choose-list": choose,
    "click-checkboxes": checkboxes,
    "click-checkboxes-large": checkboxes,
    "click-checkboxes-transfer": checkboxes,
    "click-option": radio,
    "click-scroll-list": choose_several,
    "click-widget": widget,
    "copy-paste": copy_text,
    "copy-paste-2": copy_text,
    "enter-date": answer_with(a_date),
    "enter-password": password_twice,
    "enter-text": answer_with(quoted_text),
    "enter-text-2": answer_with(quoted_text),
    "enter-text-dynamic": answer_with(quoted_text),
    "enter-time": answer_with(a_time),
    "find-word": answer_with(nth_word),
    "form-sequence-2": radio_and_text,
    "login-user": login,
    "login-user-popup": login,
    "multi-layouts": movie_search,
    "multi-orderings": movie_search,
    "read-table": answer_with(lambda view: _table(view)[matched(r"value of (.*) into", view.goal)[0]]),
    "read-table-2": two_table_values,
    "scroll-text": answer_with(lambda view: one_of(text_fields(view)).value.split()[-1].strip(".,")),
    "text-transform": answer_with(lambda view: texts(view)[0].replace(" ", "")),
    "use-spinner": spinner,
    "generate-number": generate_number,
    "guess-number": guess_number,
    "simple-algebra": answer_with(algebra),
    "simple-arithmetic": answer_with(arithmetic),
    "email-inbox": mail,
    "email-inbox-delete": mail,
    "email-inbox-forward": mail,
    "email-inbox-important": mail,
    "email-inbox-noscroll": mail,
    "email-inbox-reply": mail,
    "email-inbox-star-reply": mail,
}
