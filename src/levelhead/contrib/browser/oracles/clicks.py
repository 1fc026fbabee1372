"""Pages on which the right things have to be clicked: buttons, links, dates, search results, posts."""

from __future__ import annotations

from datetime import date, datetime

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
    scroll_down,
    text_fields,
    texts,
    with_role,
)
from levelhead.contrib.browser.view import Element, View


def quoted_button(view: View, _: int) -> Action:
    """Click the button named in quotes."""
    return click(named(view, quoted(view.goal)[0], "button"))


def button_one(view: View, _: int) -> Action:
    """Click the button that the goal ends on."""
    return click(named(view, matched(r"button (\w+)\.", view.goal)[0], "button"))


def dialog_button(view: View, _: int) -> Action:
    """Click a button of a dialog; its cross is called Close."""
    wanted = (quoted(view.goal) or ["x"])[-1]
    return click(named(view, "Close" if wanted == "x" else wanted, "button"))


def focus_field(view: View, _: int) -> Action:
    """Focus the text field, or the one of the number named."""
    fields = text_fields(view)
    return Action("focus", one_of(fields, ordinal(view.goal) if len(fields) > 1 else 0).ref)


def button_delay(view: View, step: int) -> Action:
    """Click ONE, let the seconds pass (a turn takes half of one), click TWO."""
    turns = 2 * int(matched(r"wait (\d+) seconds", view.goal)[0])
    if 1 < step <= turns:
        return Action("noop")
    return click(named(view, "ONE" if step == 1 else "TWO", "button"))


def tab(view: View, _: int) -> Action:
    """Click the tab that the goal names."""
    return click(named(view, matched(r"Click on (.*)\.", view.goal)[0], "tab"))


def search_folds(view: View, step: int) -> Action:
    """Click the link named in quotes; while it is not in sight, open the next tab or section."""
    wanted = quoted(view.goal)[0]
    links = [element for element in with_role(view, "link") if element.name == wanted]
    if links:
        return click(links[0])
    folds = with_role(view, "tab")
    opened = [index for index, fold in enumerate(folds) if "expanded" in fold.states]
    following = opened[0] + 1 if opened else 0
    return click(one_of(folds, following % max(1, len(folds)) if step < 20 else len(folds)))


def open_section(view: View, _: int) -> Action:
    """Open the section, then click Submit."""
    section = one_of(with_role(view, "tab"))
    return click(section) if "collapsed" in section.states else press_button(view, "Submit")


def tree(view: View, _: int) -> Action:
    """Click the folder or file named; while it is not in sight, open the first closed folder."""
    wanted = quoted(view.goal)[0]
    in_sight = [element for element in view.elements if element.name == wanted]
    closed = [element for element in view.elements if "collapsed" in element.states]
    return click(one_of(in_sight or closed))


def menu_path(view: View, step: int) -> Action:
    """Point at each menu along a path such as A>B>C, and click its end."""
    path = matched(r"Select (.*)", view.goal)[0].split(">")
    entry = named(view, path[min(step, len(path)) - 1], "menuitem")
    return click(entry) if step >= len(path) else Action("hover", entry.ref)


def color_box(view: View, _: int) -> Action:
    """Click the box of a colour."""
    wanted = matched(r"Click on the (\w+) colored box", view.goal)[0]
    return click(one_of([element for element in view.elements if element.name.split(" ")[-1] == wanted]))


def greatest_card(view: View, step: int) -> Action:
    """Click the card with the greatest number, then Submit."""
    if step > 1:
        return press_button(view, "Submit")
    cards = [element for element in with_role(view, "item") if element.name.isdigit()]
    return click(max(cards, key=lambda card: int(card.name)))


def cheapest_ticket(view: View, _: int) -> Action:
    """Book the ticket that is best by cost or by duration."""
    offers: list[tuple[int, int, Element]] = []
    minutes = 0
    for line in view.lines:
        for part in line.parts:
            if isinstance(part, Element):
                offers.append((int(matched(r"\$(\d+)", part.name)[0]), minutes, part))
            elif part.endswith("m"):
                hours, rest = matched(r"(\d+)h (\d+)m", part)
                minutes = 60 * int(hours) + int(rest)
    if not offers:
        raise LookupError("no ticket is offered")
    by = 0 if "cost" in view.goal or "cheap" in view.goal or "expensive" in view.goal else 1
    choose = min if "shortest" in view.goal or "cheapest" in view.goal or "least" in view.goal else max
    return click(choose(offers, key=lambda offer: offer[:2][by])[2])


def odd_or_even(view: View, step: int) -> Action:
    """Mark the numbers in turn, then submit."""
    numbers = [int(text) for text in texts(view)]
    if step > len(numbers):
        return press_button(view, "Submit")
    side = "Odd" if numbers[step - 1] % 2 else "Even"
    return click(one_of([button for button in with_role(view, "button") if button.name == side], step - 1))


def grid_point(view: View, _: int) -> Action:
    """Click the point of given coordinates: columns from -2 to 2, each from the top down."""
    x, y = (int(number) for number in matched(r"\((-?\d+),(-?\d+)\)", view.goal))
    return click(one_of(with_role(view, "circle"), 5 * (x + 2) + 2 - y))


def shape_kind(view: View, _: int) -> Action:
    """Click the button that says what the figure is."""
    figure = next((element for element in view.elements if element.role != "button"), None)
    if figure is None:
        raise LookupError("there is no figure")
    kinds = {"circle": "Circle", "rect": "Rectangle", "polygon": "Triangle"}
    kind = kinds.get(figure.role) or ("Number" if figure.name.isdigit() else "Letter")
    return click(named(view, kind, "button"))


def pick_date(view: View, _: int) -> Action:
    """Open the calendar, turn to the month, click the day, submit."""
    wanted = matched(r"(\d\d/\d\d/\d{4})", view.goal)[0]
    month, day, year = (int(number) for number in wanted.split("/"))
    field = one_of(text_fields(view))
    if field.value == wanted:
        return press_button(view, "Submit")
    shown = _month_shown(view)
    if shown is None:
        return click(field)
    if shown != date(year, month, 1):
        return click(named(view, "Prev" if shown > date(year, month, 1) else "Next"))
    return click(named(view, str(day), "link"))


def _month_shown(view: View) -> date | None:
    for text in texts(view):
        try:
            return datetime.strptime(text, "%B %Y").date()
        except ValueError:
            continue
    return None


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
    shown = next(iter(texts(view)), "")
    if shown != who:
        return click(named(view, ">", "link"))
    for line in view.lines:
        if line.parts[0] == labels[what] and not isinstance(line.parts[1], str):
            return click(line.parts[1])
    raise LookupError(f"the contact has no {what}")


ICONS = {"Reply": "reply", "Retweet": "retweet", "Like": "like", "Share": "share"}


def one_post(view: View, _: int) -> Action:
    """Click a button under a user's post; most are in a menu that opens first."""
    user, button = matched(r'For the user (@\w+), click on the "(.*)" button', view.goal)
    icon = ICONS.get(button)
    if icon is None:
        entries = [element for element in view.elements if element.name in (button, f"{button} {user}")]
        if entries:
            return click(entries[0])
        if any(element.name == "Share via DM" for element in view.elements):  # the menu is open, its end out of sight
            return scroll_down(view)
        icon = "more"
    posts = _posts(view, user, icon)
    return click(posts[0]) if posts else scroll_down(view)


def _posts(view: View, user: str, icon: str) -> list[Element]:
    """Return the icons of a name in the posts of a user that are in sight."""
    icons = []
    theirs = False
    for line in view.lines:
        for part in line.parts:
            if isinstance(part, str) and "@" in part:
                theirs = user in part.split()
            elif isinstance(part, Element) and theirs and part.name.split(" ")[0] == icon:
                icons.append(part)
    return icons


ORACLES: dict[str, Oracle] = {
    "button-delay": button_delay,
    "buy-ticket": cheapest_ticket,
    "click-button": quoted_button,
    "click-button-sequence": lambda view, step: click(named(view, "ONE" if step == 1 else "TWO", "button")),
    "click-collapsible": open_section,
    "click-collapsible-2": search_folds,
    "click-collapsible-2-nodelay": search_folds,
    "click-collapsible-nodelay": open_section,
    "click-color": color_box,
    "click-dialog": dialog_button,
    "click-dialog-2": dialog_button,
    "click-link": lambda view, _: click(named(view, quoted(view.goal)[0], "link")),
    "click-menu": menu_path,
    "click-tab": tab,
    "click-tab-2": search_folds,
    "click-tab-2-easy": search_folds,
    "click-tab-2-hard": search_folds,
    "click-tab-2-medium": search_folds,
    "click-test": lambda view, _: press_button(view),
    "click-test-2": button_one,
    "click-test-transfer": button_one,
    "find-greatest": greatest_card,
    "focus-text": focus_field,
    "focus-text-2": focus_field,
    "grid-coordinate": grid_point,
    "identify-shape": shape_kind,
    "navigate-tree": tree,
    "odd-or-even": odd_or_even,
    "unicode-test": quoted_button,
    "choose-date": pick_date,
    "choose-date-easy": pick_date,
    "choose-date-medium": pick_date,
    "choose-date-nodelay": pick_date,
    "phone-book": phone_book,
    "search-engine": nth_result,
    "use-autocomplete": autocomplete,
    "use-autocomplete-nodelay": autocomplete,
    "social-media": one_post,
}
