"""Building HTML.  Whatever comes from a run (model text above all) passes through :func:`esc` and is never markup."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping
from typing import Any

from levelhead.documents import dump_json
from levelhead.report.series import number
from levelhead.terminal import safe


def esc(value: object) -> str:
    """Escape text for use as content or attribute; control characters become visible."""
    text = str(value)
    if not (text.isascii() and text.isprintable()):
        text = "".join(_visible(c) for c in text)
    return html.escape(text, quote=True)


def tag(name: str, *inner: str, cls: str = "", **attributes: str) -> str:
    """Wrap markup in an element; attribute values are escaped, inner markup is taken as it is."""
    pairs = {"class": cls, **attributes} if cls else attributes
    shown = "".join(f' {key.rstrip("_").replace("_", "-")}="{esc(value)}"' for key, value in pairs.items())
    return f"<{name}{shown}>{''.join(inner)}</{name}>"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table that scrolls sideways where it is wide; its cells are escaped."""
    head = tag("tr", *[tag("th", esc(cell)) for cell in heads])
    body = [tag("tr", *[tag("td", esc(cell)) for cell in row]) for row in rows]
    return tag("div", tag("table", head, *body), cls="scroll")


def pill(text: str, tone: str = "") -> str:
    """Return a small label; ``tone`` is one of good, warn, bad, info or nothing."""
    return tag("span", esc(text), cls=f"pill {tone}".strip())


def fold(summary: str, *inner: str, opened: bool = False, cls: str = "") -> str:
    """Return a section that opens on a click."""
    shown = " open" if opened else ""
    return f'<details class="{esc(cls)}"{shown}><summary>{summary}</summary>{"".join(inner)}</details>'


def pairs(values: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> str:
    """Return names and values as a grid."""
    items = values.items() if isinstance(values, Mapping) else values
    rows = "".join(f"<div><dt>{esc(name)}</dt><dd>{esc(show(value))}</dd></div>" for name, value in items)
    return f'<dl class="pairs">{rows}</dl>'


def show(value: Any) -> str:
    """Write a value for a reader: numbers short, lists and dicts as JSON."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return figure(value)
    return value if isinstance(value, str) else dump_json(value)


def figure(value: Any, digits: int = 4) -> str:
    """Write a number with few digits."""
    numeric_value = number(value)
    return str(value) if numeric_value is None else f"{numeric_value:.{digits}g}"


def signed(value: float) -> str:
    """Write a difference with its sign."""
    return f"{value:+.3f}".replace("-", "\u2212")


def duration(seconds: float) -> str:
    """Write seconds as a person would say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def json_for_script(value: Any) -> str:
    """Return JSON that can stand inside a script element: nothing in it can close the element or open another."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _visible(char: str) -> str:
    code = ord(char)
    if (code < 32 and char not in "\n\t") or code == 127:
        return chr(0x2400 + code) if code < 32 else "\u2421"
    # C1 controls, halves of surrogate pairs, and marks that turn the direction of writing.
    return "\ufffd" if char != safe(char) else char
