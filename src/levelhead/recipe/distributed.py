"""``distributed``: how the processes of one run share the model and wait for each other."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from levelhead.section import Section


class Distributed(Section):
    """What several processes (``torchrun``, ``accelerate launch``) do with one model; a run of one ignores it."""

    shard: Literal["none", "full"] = "none"
    """``none``: every process holds the whole model.  ``full``: weights, gradients and optimizer state are divided over
    the processes (FSDP2), and so are checkpoints."""
    timeout_s: float = Field(600.0, ge=1, le=604800)
    """How long a process waits for the others before the run ends; longer than the slowest process is behind at any
    time, be it by slow rewards."""
