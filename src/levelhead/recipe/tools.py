"""``tasks[].tools``: functions that the policy may call before it answers."""

from __future__ import annotations

from pydantic import Field, model_validator

from levelhead.recipe.workflow import SandboxLimits
from levelhead.section import Section


class McpProgram(Section):
    """An MCP server over stdio."""

    command: list[str] = Field(min_length=1)
    """The program and its arguments: started as it stands, without a shell."""
    env: list[str] = Field(default_factory=list)
    """Environment variables that it sees beside ``PATH``, ``HOME`` and the like."""
    tools: list[str] = Field(default_factory=list)
    """Those of its tools that the policy may call; all where none is named."""
    processes: int = Field(4, ge=1, le=64)
    """Most processes that answer calls at the same time, one each."""
    start_timeout_s: float = Field(60.0, gt=0, le=3600)
    """Longest that it may take to start, in seconds."""


class ToolUse(Section):
    """Tools that are executed: the policy's calls are read in the format of the chat template, and answered."""

    functions: list[str] = Field(default_factory=list)
    """Functions as ``file.py:name``, with type hints and a docstring that says what each argument is; ``python`` runs
    programs in the sandbox."""
    servers: list[McpProgram] = Field(default_factory=list)
    """Programs that offer tools over the Model Context Protocol."""
    column: str | None = "tools"
    """Column with the tools of a row, JSON schemas whose names are among those above; a row without has all."""
    turns: int = Field(4, ge=1, le=64)
    """Most turns of an answer; what the last one says is the answer, a call or not."""
    calls: int = Field(4, ge=1, le=64)
    """Most calls in a turn; a turn with more is answered with an error."""
    timeout_s: float = Field(10.0, gt=0, le=3600)
    """Longest that a call may take, in seconds."""
    result_chars: int = Field(1000, ge=16, le=1_000_000)
    """Most characters of a result that the policy is shown."""
    sandbox: SandboxLimits = SandboxLimits()
    """Bounds on the programs of ``python``."""

    @model_validator(mode="after")
    def _some_tool(self) -> ToolUse:
        if not self.functions and not self.servers:
            raise ValueError("functions or servers must name a tool")
        return self
