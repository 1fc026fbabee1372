"""When a page is lost, and who is told."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[str, str], None]
"""Called with the code and the message of something that happened."""


class TabLostError(Exception):
    """The page cannot be used any more.

    Attributes:
        code: ``page-lost`` (closed or crashed), ``page-hung`` or ``page-broken`` (its script failed at the start).
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
