"""What is said of a check to somebody who asks: what it proves, how, and what it cannot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """The explanation of one check, in plain English.

    Attributes:
        name: Of the check, as ``loss/completion-only``; ``TASK`` stands for the name of a task, ``STAGE`` for
            ``sft`` or ``grpo``.
        proves: What is true of the run where the check passes.
        how: What it does to find out.
        cannot: What it does not see, so that a pass is not taken for more than it is.
    """

    name: str
    proves: str
    how: str
    cannot: str
