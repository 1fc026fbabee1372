"""A block of a notebook's cell that is drawn anew, where a terminal has a bar."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from typing import Any, Protocol


class Handle(Protocol):
    """What IPython returns for an output that may be replaced."""

    def update(self, content: Any) -> None:
        """Show other content in its place."""
        ...


class Html:
    """HTML that a notebook shows as such."""

    def __init__(self, text: str) -> None:
        self.text = text

    def _repr_html_(self) -> str:
        return self.text


def handle() -> Handle | None:
    """Return a new output of the running cell; ``None`` outside a notebook."""
    python: Any = sys.modules.get("IPython")
    if python is None or type(python.get_ipython()).__name__ != "ZMQInteractiveShell":
        return None
    display: Handle = python.display.display(Html(""), display_id=True)
    return display


def block(done: int, total: int, note: str, rows: Sequence[tuple[str, ...]], below: str) -> Html:
    """Return a bar, a line, a table and another line; every text is escaped."""
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    bar = f'<progress value="{done}" max="{total}"></progress> {done}/{total}'
    return Html(f"<div>{bar} {escape(note)}<table>{cells}</table>{escape(below)}</div>")
