"""How long to wait before a call is repeated: growing, jittered, and bounded whatever the endpoint asks for."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST_WAIT_S = 30.0
"""Longest wait of our own between two attempts at a call."""
LONGEST_RETRY_AFTER_S = 120.0
"""Longest wait that an endpoint is granted by ``Retry-After``."""
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def read_retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds that a ``Retry-After`` header asks for, 0 or more.

    It holds seconds (RFC 9110, 10.2.3; fractions are read as well) or a date.  ``None`` for anything else.

    Args:
        header: Its value; ``None`` where there is none.
        now: The time that a date is compared with.
    """
    text = (header or "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


class Waits:
    """The waits between the attempts at one call.

    They double from ``backoff_s`` up to 30 s, each shortened by a random factor of 0.5 to 1, so that calls that failed
    together do not come back together.  An endpoint may ask for longer, up to 120 s, but never for less.

    Args:
        backoff_s: The first wait.
        seed: Fixes the jitter: the content of the call.
    """

    def __init__(self, backoff_s: float, seed: str) -> None:
        self._next = min(backoff_s, LONGEST_WAIT_S)
        self._random = random.Random(f"waits/{seed}")

    def next(self, asked_s: float | None, left_s: float) -> float:
        """Return the seconds to wait before the next attempt.

        Args:
            asked_s: What the endpoint asks for, if it does.
            left_s: Patience that is left: the last attempt is made when it ends.
        """
        own = self._next * self._random.uniform(0.5, 1.0)
        self._next = min(2 * self._next, LONGEST_WAIT_S)
        asked = min(asked_s or 0.0, LONGEST_RETRY_AFTER_S) * self._random.uniform(1.0, 1.1)
        return min(max(own, asked), left_s)
