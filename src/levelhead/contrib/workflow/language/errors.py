"""What is wrong with a text that should have been a workflow, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal


class WorkflowError(ValueError):
    """A text is no workflow, or a workflow that cannot be run.

    Attributes:
        kind: ``syntax`` the text does not follow the grammar, ``static`` it does, but what it asks for cannot work.
        column: Where, counted in characters from 1.
        problem: What was found.
        expected: What could have stood there instead, in words; empty where nothing could.
    """

    def __init__(
        self, kind: Literal["syntax", "static"], column: int, problem: str, expected: Sequence[str] = ()
    ) -> None:
        self.kind = kind
        self.column = column
        self.problem = problem
        self.expected = tuple(expected)
        super().__init__(self._message())

    def _message(self) -> str:
        if not self.expected:
            return f"column {self.column}: {self.problem}"
        return f"column {self.column}: {self.problem}; expected {_either(self.expected)}"


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
