"""The one exception that means: the user's input is wrong, and here is what to change."""

from __future__ import annotations


class InputError(Exception):
    """Bad input: a recipe key, a data file, a checkpoint.

    The message is one or two lines that name the file, the key and the way out.  The command line prints it
    and exits with code 2; nothing has been written when it is raised.
    """


class PolicyError(Exception):
    """The policy is lost: it no longer gives a distribution to draw from."""


class RewardError(Exception):
    """A user's reward function misbehaved while training; the message names it, the row and the completion."""
