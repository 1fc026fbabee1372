"""``tasks[].tools``: functions that the policy may call before it answers."""

from __future__ import annotations

from pydantic import Field

from levelhead.recipe.workflow import SandboxLimits
from levelhead.section import Section


class ToolUse(Section):
    """Tools that are executed: the policy's calls are read in the format of the chat template, and answered."""

    functions: list[str] = Field(min_length=1)
    """Functions as ``file.py:name``, with type hints and a docstring that says what each argument is; ``python`` runs
    programs in the sandbox."""
    column: str | None = "tools"
    """Column with the tools of a row, JSON schemas whose names are among the functions; a row without has all."""
    turns: int = Field(4, ge=1, le=64)
    """Most turns of an answer; what the last one says is the answer, a call or not."""
    calls: int = Field(4, ge=1, le=64)
    """Most calls in a turn; a turn with more is answered with an error."""
    timeout_s: float = Field(10.0, gt=0, le=3600)
    """Longest that a function may take, in seconds."""
    result_chars: int = Field(1000, ge=16, le=1_000_000)
    """Most characters of a result that the policy is shown."""
    sandbox: SandboxLimits = SandboxLimits()
    """Bounds on the programs of ``python``."""
