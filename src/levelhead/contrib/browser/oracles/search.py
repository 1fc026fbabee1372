"""Pages with suggestions, search results and several pages of them."""

from __future__ import annotations

from levelhead.contrib.browser.actions import Action
from levelhead.contrib.browser.oracles.find import (
    Oracle,
    click,
    fill,
    matched,
    named,
    one_of,
    ordinal,
    press_button,
    quoted,
    text_fields,
    with_role,
)
from levelhead.contrib.browser.view import View

RESULTS_A_PAGE = 3


def autocomplete(view: View, _: int) -> Action:
    """Write the beginning, click the suggestion with the right end, submit."""
    start, *rest = quoted(view.goal)
    end = rest[0] if rest else ""
    field = one_of(text_fields(view))
    if field.value.startswith(start) and field.value.endswith(end) and field.value != start:
        return press_button(view, "Submit")
    suggested = [item for item in view.elements if item.role in ("item", "menuitem") and item.name.startswith(start)]
    right = [item for item in suggested if item.name.endswith(end)]
    return click(right[0]) if right else fill(field, start)


def nth_result(view: View, _: int) -> Action:
    """Search, turn to the page of the nth result, click it."""
    (wanted,) = {text for text in quoted(view.goal) if text != "Search"}
    index = ordinal(matched(r"click the (\d+)", view.goal)[0])
    field = one_of(text_fields(view))
    if field.value != wanted:
        return fill(field, wanted)
    links = with_role(view, "link")
    pages = [link for link in links if link.name.isdigit() or link.name in ("<", ">")]
    if not pages:
        return press_button(view, "Search")
    page = named(view, str(index // RESULTS_A_PAGE + 1), "link")
    if "selected" not in page.states:
        return click(page)
    return click(one_of([link for link in links if link not in pages], index % RESULTS_A_PAGE))


def phone_book(view: View, _: int) -> Action:
    """Turn the pages to a person, click their number, address or mail."""
    who, what = matched(r"Find (.*) in the contact book and click on their (.*)\.", view.goal)
    labels = {"phone number": "Phone:", "email": "Email:", "address": "Address:"}
    shown = next((part for line in view.lines for part in line.parts if isinstance(part, str)), "")
    if shown != who:
        return click(named(view, ">", "link"))
    for line in view.lines:
        if line.parts[0] == labels[what] and not isinstance(line.parts[1], str):
            return click(line.parts[1])
    raise LookupError(f"the contact has no {what}")


ORACLES: dict[str, Oracle] = {
    "phone-book": phone_book,
    "search-engine": nth_result,
    "use-autocomplete": autocomplete,
    "use-autocomplete-nodelay": autocomplete,
}
