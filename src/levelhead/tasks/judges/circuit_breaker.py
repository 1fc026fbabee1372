"""Whether a judge that failed is asked again: closed while it answers, open while it is left alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from levelhead.tasks.endpoint import BudgetError, EndpointError

LONGEST_REST_S = 600.0
"""Longest time that a judge is left alone before it is tried again."""
FATAL = frozenset({"authentication", "refusal", "budget"})
"""Causes of failures that no waiting mends."""


class CircuitBreaker:
    """Opens when a judge fails, lets one call through after a rest, and closes when that is answered (Nygard 2007).

    Args:
        rest_s: The first rest; doubled, up to ten minutes, each time that the call after it fails.
        clock: Seconds, from anywhere.
    """

    def __init__(self, rest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._first_s = self._rest_s = rest_s
        self._clock = clock
        self._until = -math.inf
        self.fault: EndpointError | None = None

    @property
    def open(self) -> bool:
        """Whether the judge has failed and has not answered since."""
        return self.fault is not None

    @property
    def spent(self) -> bool:
        """Whether its budget is used up, which no waiting changes."""
        return isinstance(self.fault, BudgetError)

    @property
    def lost(self) -> bool:
        """Whether it has failed in a way that no waiting mends."""
        return self.fault is not None and self.fault.cause in FATAL

    def allows(self, *, waiting: bool = False) -> bool:
        """Whether it may be asked: it answers, or has rested.

        Args:
            waiting: Whether no other judge is left, so that it is tried without a rest.
        """
        return not self.open or (not self.spent and (waiting or self._clock() >= self._until))

    def trip(self, fault: EndpointError) -> bool:
        """Take note of a failure; returns whether it is news."""
        news = not self.open
        self._rest_s = self._first_s if news else min(2 * self._rest_s, max(LONGEST_REST_S, self._first_s))
        self._until, self.fault = self._clock() + self._rest_s, fault
        return news

    def close(self) -> bool:
        """Take note of an answer; returns whether it is news."""
        news, self.fault = self.open, None
        return news
