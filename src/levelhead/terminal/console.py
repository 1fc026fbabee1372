"""A rich console that passes on its own colours and cursor movements, and none that stand in the text."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from levelhead.terminal import safe


class SafeConsole(Console):
    """A console whose every piece of text goes through :func:`levelhead.terminal.safe`."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, text made safe; what rich itself says to the terminal stays."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(safe(text), style)
