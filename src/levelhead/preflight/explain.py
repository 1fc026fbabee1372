"""What each check proves, how, and what it cannot: one catalogue for the command and the documentation.

The entries stand in ``catalogue/``, a module a family.  A new check adds one entry there.
"""

from __future__ import annotations

import difflib

from levelhead.errors import InputError
from levelhead.preflight.catalogue import advice, agreement, draws, identities, loss, objective, pairs, rewards, tokens
from levelhead.preflight.entry import Entry

_FAMILIES = (identities, tokens, agreement, loss, draws, objective, rewards, pairs, advice)

CATALOGUE: dict[str, Entry] = {entry.name: entry for family in _FAMILIES for entry in family.ENTRIES}
"""Every check by name, in the order in which they are listed."""


def key_of(name: str) -> str | None:
    """Return the catalogue's name of a check, as ``rewards/order/TASK`` for ``rewards/order/math``; ``None`` for none.

    Args:
        name: Of a check as it is reported, or of an entry.
    """
    parts = name.split("/")
    stem = "/".join(parts[:2])
    forms = [name, f"{stem}/TASK", f"{stem}/STAGE"]
    if len(parts) == 2 and parts[1] == "error":
        forms.append("FAMILY/error")
    return next((form for form in forms if form in CATALOGUE), None)


def explain(name: str) -> Entry:
    """Return the entry of a check.

    Args:
        name: As a report has it, as ``rewards/order/math``, or without its task.

    Raises:
        InputError: There is no such check; the message names the nearest and lists all.
    """
    key = key_of(name)
    if key is not None:
        return CATALOGUE[key]
    names = [entry.removesuffix("/TASK").removesuffix("/STAGE") for entry in CATALOGUE]
    near = difflib.get_close_matches(name.lower(), names, 1, 0.5) or [entry for entry in names if name.lower() in entry]
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InputError(f"--explain {name}: there is no check of that name{hint}\nThe checks are {', '.join(names)}.")
