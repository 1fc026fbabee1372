"""What can go wrong with one server, before anybody has said whether another can stand in for it."""

from __future__ import annotations


class ServerLostError(Exception):
    """A server cannot be reached, or broke off; another server can do the same work."""


class ServerStaleError(Exception):
    """A server does not hold the weights that it was given: it has been started anew."""


class HangsError(Exception):
    """A server has not answered within the time that the recipe gives it."""


class RefusedError(Exception):
    """A server answers a call with an HTTP error.

    Args:
        path: Of the call.
        status: HTTP status.
        said: The beginning of what it said.
    """

    def __init__(self, path: str, status: int, said: str) -> None:
        super().__init__(f"{path} answers HTTP {status}{f': {said}' if said else ''}")
        self.path, self.status, self.said = path, status, said
