"""Pages with a calendar to pick a date from."""

from __future__ import annotations

from datetime import date, datetime

from levelhead.contrib.browser.actions import Action
from levelhead.contrib.browser.oracles.find import Oracle, click, matched, named, one_of, press_button, text_fields
from levelhead.contrib.browser.oracles.puzzles import texts
from levelhead.contrib.browser.view import View


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


ORACLES: dict[str, Oracle] = {
    "choose-date": pick_date,
    "choose-date-easy": pick_date,
    "choose-date-medium": pick_date,
    "choose-date-nodelay": pick_date,
}
