"""Ctrl-C: the first asks the run to end after its step, the second ends it at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Interrupt:
    """Whether the run has been asked to stop.

    Attributes:
        asked: Whether SIGINT or SIGTERM has come.
    """

    def __init__(self) -> None:
        self.asked = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, the first signal is noted and the second raises ``KeyboardInterrupt``; main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True

        previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
