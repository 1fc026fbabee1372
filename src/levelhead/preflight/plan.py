"""What a run will take of a device's memory, from the recipe and the model's config alone.

Every part has a size and the phases in which it lies in memory; the largest phase is what the run needs.  Sizes of
weights, copies and caches are arithmetic; those of passes come from :mod:`levelhead.policy.footprint`.  Sequences are
taken to be as long as they may become: the longest prompt, and completions that use up their budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

CLOSE = 0.9
"""Share of the memory from which on a plan is called tight: it is held to be right to a tenth."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is planned for.

    Attributes:
        device: ``cpu`` or ``cuda``.
        compute: Type of matrix products there.
        room: Bytes that it has; ``None`` where nobody knows.
        name: What a person calls it.
    """

    device: str
    compute: torch.dtype
    room: int | None
    name: str


@dataclass(frozen=True, slots=True)
class Prompts:
    """How long prompts are taken to be.

    Attributes:
        tokens: The longest one.
        source: How that is known.
    """

    tokens: int
    source: str


@dataclass(frozen=True, slots=True)
class Part:
    """Something that lies in memory.

    Attributes:
        name: What it is.
        size: Bytes.
        phases: When it is there.
        note: What the size depends on.
    """

    name: str
    size: int
    phases: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The memory of a run.

    Attributes:
        target: What is planned for.
        backend: That runs the model.
        prompts: How long they are taken to be.
        parameters: Of the model, adapters included.
        trained: Those of them that are trained.
        parts: What lies in memory.
        activations: Bytes of the largest micro-batch's activations without and with gradient checkpointing.
        processes: Of the run; all sizes are those of one of them.
    """

    target: Target
    backend: str
    prompts: Prompts
    parameters: int
    trained: int
    parts: tuple[Part, ...]
    activations: dict[str, int]
    processes: int = 1

    @property
    def phases(self) -> dict[str, int]:
        """Bytes of each phase."""
        names = dict.fromkeys(phase for part in self.parts for phase in part.phases)
        return {name: sum(part.size for part in self.parts if name in part.phases) for name in names}

    @property
    def peak(self) -> str:
        """The phase that takes most."""
        return max(self.phases, key=lambda name: self.phases[name])

    @property
    def total(self) -> int:
        """Bytes that the run needs."""
        return self.phases[self.peak]

    @property
    def fits(self) -> bool | None:
        """Whether it fits; ``None`` where nobody knows how much there is."""
        return None if self.target.room is None else self.total <= self.target.room

    @property
    def status(self) -> str:
        """``fits``, ``tight``, ``does not fit`` or ``unknown``."""
        if self.target.room is None:
            return "unknown"
        return "does not fit" if not self.fits else "tight" if self.total > CLOSE * self.target.room else "fits"

    def to_json(self) -> dict[str, Any]:
        """As one JSON document, sizes in bytes."""
        return {
            "status": self.status,
            "device": self.target.name,
            "room": self.target.room,
            "total": self.total,
            "peak": self.peak,
            "phases": self.phases,
            "backend": self.backend,
            "compute": str(self.target.compute).removeprefix("torch."),
            "parameters": self.parameters,
            "trained": self.trained,
            "processes": self.processes,
            "prompt_tokens": {"longest": self.prompts.tokens, "source": self.prompts.source},
            "parts": [{"name": p.name, "bytes": p.size, "phases": list(p.phases), "note": p.note} for p in self.parts],
            "activations": self.activations,
        }
