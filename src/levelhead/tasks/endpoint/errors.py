"""What can go wrong with an endpoint: with the whole of it, or with one attempt at a call."""

from __future__ import annotations

from levelhead.errors import RewardError


class EndpointError(RewardError):
    """The endpoint cannot be used: it refuses, or gives no usable reply for longer than the recipe has patience.

    Args:
        message: What happened, in one line.
        cause: ``authentication`` (401, 403), ``refusal`` (any other status), ``outage`` or ``budget``.
        fix: What to change.
    """

    def __init__(self, message: str, cause: str = "refusal", fix: str = "") -> None:
        super().__init__(message)
        self.cause, self.fix = cause, fix


class BudgetError(EndpointError):
    """The budget in calls, tokens or money is used up."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "budget", "raise the budget that the message names and resume the run")


class FailedAttemptError(Exception):
    """One attempt at a call came to nothing; the next one may do better.

    Attributes:
        after_s: Seconds that the endpoint asks to be left alone, if it does.
        throttled: Whether there were too many calls (429).
    """

    def __init__(self, reason: str, after_s: float | None = None, *, throttled: bool = False) -> None:
        super().__init__(reason)
        self.after_s, self.throttled = after_s, throttled


class UnreachedError(FailedAttemptError):
    """No connection could be made: the call has not reached the endpoint, and cannot be billed."""
