"""The message feed: the right button under the right person's posts."""

from __future__ import annotations

from levelhead.contrib.browser.actions import Action
from levelhead.contrib.browser.oracles.find import Oracle, click, matched, one_of, with_role
from levelhead.contrib.browser.view import Element, View

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
            return _scroll(view)
        icon = "more"
    posts = _posts(view, user, icon)
    return click(posts[0]) if posts else _scroll(view)


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


def _scroll(view: View) -> Action:
    areas = [area for area in with_role(view, "scroll area") if "more below" in area.states]
    return Action("scroll", one_of(areas).ref, "down")


ORACLES: dict[str, Oracle] = {"social-media": one_post}
