"""What each check proves, how, and what it cannot; and what a stored outcome says in another language."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from levelhead.errors import InputError
from levelhead.message import Message
from levelhead.preflight.check import Broken
from levelhead.preflight.checks import CHECKS

if TYPE_CHECKING:
    from levelhead.diagnosis.findings import Language
    from levelhead.preflight.check import Check

_EVERY: tuple[type[Check], ...] = (*CHECKS, Broken)
CATALOGUE: dict[str, type[Check]] = {check.name: check for check in _EVERY}
"""Every check by name, in the order in which they are listed."""
_NEAR = Message("; did you mean {near}?", "；是不是 {near}？")
_NO_CHECK = Message(
    "--explain {name}: there is no check of that name{hint}\nThe checks are {names}.",
    "--explain {name}：没有这个名字的检查{hint}\n全部检查：{names}。",
)


def key_of(name: str) -> str | None:
    """Return the catalogue's name of a check, as ``rewards/order/TASK`` for ``rewards/order/math``; ``None`` for none.

    Args:
        name: Of an outcome as it is reported, or of a check.
    """
    parts = name.split("/")
    stem = "/".join(parts[:2])
    forms = [name, f"{stem}/TASK", f"{stem}/STAGE"]
    if len(parts) == 2 and parts[1] == "error":
        forms.append(Broken.name)
    return next((form for form in forms if form in CATALOGUE), None)


def explain(name: str) -> type[Check]:
    """Return the check of a name.

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
    hint = _NEAR(near=near[0]) if near else ""
    raise InputError(_NO_CHECK(name=name, hint=hint, names=", ".join(names)))


def stored(row: Mapping[str, Any], language: Language) -> tuple[str, str]:
    """Return message and fix of a row of ``check.json`` in a language; as they were stored where the id is unknown.

    Args:
        row: With ``id`` and ``fields``; rows that older versions wrote have only English texts.
        language: Of the result.
    """
    name, _, key = str(row.get("id") or "").rpartition(":")
    check, fields = CATALOGUE.get(name), row.get("fields")
    message = check.messages().get(key) if check is not None else None
    if message is not None and isinstance(fields, Mapping):
        try:
            return message.text(fields, language), message.way_out(fields, language)
        except (KeyError, ValueError, TypeError, IndexError):
            pass  # a file that somebody has changed
    return str(row.get("message") or ""), str(row.get("fix") or "")
