"""The mail client: delete, star, reply and forward."""

from __future__ import annotations

import re

from levelhead.contrib.browser.actions import Action
from levelhead.contrib.browser.oracles.find import Oracle, click, fill_all, named, one_of, text_fields, with_role
from levelhead.contrib.browser.view import Element, View


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
    return _scroll(view)


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
    return _scroll(view)


def _scroll(view: View) -> Action:
    areas = [area for area in with_role(view, "scroll area") if "more below" in area.states]
    return Action("scroll", one_of(areas).ref, "down")


ORACLES: dict[str, Oracle] = {
    "email-inbox": mail,
    "email-inbox-delete": mail,
    "email-inbox-forward": mail,
    "email-inbox-important": mail,
    "email-inbox-noscroll": mail,
    "email-inbox-reply": mail,
    "email-inbox-star-reply": mail,
}
