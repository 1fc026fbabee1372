"""The one exception that means: the user's input is wrong, and here is what to change."""

from __future__ import annotations


class InputError(Exception):
    """Bad input: a recipe key, a data file, a checkpoint.

    The message is one or two lines that name the file, the key and the way out.  The command line prints it
    and exits with code 2; nothing has been written when it is raised.
    """


class PolicyError(Exception):
    """The policy is lost: it no longer gives a distribution to draw from."""


class PeerError(Exception):
    """Another process of the run has ended or hangs, and this one cannot go on alone."""


class RewardError(Exception):
    """A reward cannot be computed: a user's function misbehaved, or an endpoint is of no use; the message says which.

    Attributes:
        cause: What kind of trouble it is, for the event that tells of it.
        fix: What to change; empty where the message says all.
    """

    cause: str = "reward-function"
    fix: str = ""


class EngineError(Exception):
    """Servers that sample cannot be used, or do not hold the policy; the message says which, why and what to do.

    Args:
        message: What happened, in one line.
        cause: Its name, for the event that tells of it: ``stale-cache``, ``tied-head``, ``half-update``,
            ``other-model``, ``hangs``, ``refused``, ``lost`` or ``mismatch``.
    """

    def __init__(self, message: str, cause: str = "refused") -> None:
        super().__init__(message)
        self.cause = cause


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text; the name of its type where it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
