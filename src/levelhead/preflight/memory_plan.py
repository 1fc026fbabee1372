"""What a run will take of a device's memory, from the recipe and the model's config alone.

Every part has a size and the phases in which it lies in memory; the largest phase is what the run needs.  Sizes of
weights, copies and caches are arithmetic; those of passes come from :mod:`levelhead.policy.footprint`.  Sequences are
taken to be as long as they may become: the longest prompt, and completions that use up their budget.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from levelhead.errors import InputError, first_line
from levelhead.policy.device import resolve_device, resolve_dtype
from levelhead.policy.footprint import Footprints, tensor_bytes
from levelhead.policy.load import load_codec
from levelhead.recipe import Recipe
from levelhead.recipe.model import Model
from levelhead.text.codec import Codec
from levelhead.training.prepare import make_tasks

CLOSE = 0.9
"""Share of the memory from which on a plan is called tight: it is held to be right to a tenth."""


@dataclass(frozen=True, slots=True)
class Target:
    """The machine that is planned for.

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
class MemoryPlan:
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
        """Bytes in use in each phase of a step."""
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


PREFLIGHT = "preflight"
"""The phase in which the first process holds whole weights, where servers draw."""
_MICRO_BATCH = ("activations", "logits")
"""Parts of a micro-batch, which the preflight makes as well."""


def divisor(recipe: Recipe, processes: int) -> int:
    """Return by how much a run of so many processes divides its weights."""
    return processes if recipe.distributed.shard == "full" else 1


def share(size: int, processes: int) -> int:
    """Return how much of something one process has at most where they divide it: bytes, groups, prompts."""
    return -(-size // processes)


def divided_parts(
    recipe: Recipe, footprints: Footprints, parts: Sequence[Part], trains: Sequence[str], weights: int
) -> list[Part]:
    """Return parts with what is whole nevertheless: the layers at work, what draws, and what the first process checks.

    Args:
        recipe: With ``shard: full`` and several processes.
        footprints: Of its model.
        parts: Those of the run so far.
        trains: Phases in which there is a backward pass.
        weights: Bytes of all weights.
    """
    phases = tuple(dict.fromkeys(phase for part in parts for phase in part.phases))
    local = recipe.generator.kind == "local"
    whole = [Part("layers at work", at_work(footprints), tuple(trains), "gathered for a pass, and their gradients")]
    if local:
        whole.append(Part("weights (to draw)", weights, phases, "whole in every process; servers would spare it"))
    elif recipe.check:
        trained = tensor_bytes(footprints.policy.parameters)
        reference = next((weights for part in parts if part.name == "reference" and not footprints.policy.lora), 0)
        note = "whole weights, a gradient and a copy, in the first process alone (check: false spares it)"
        whole.append(Part("preflight", weights + 2 * trained + reference, (PREFLIGHT,), note))
        parts = [
            replace(part, phases=(*part.phases, PREFLIGHT)) if part.name in _MICRO_BATCH else part for part in parts
        ]
    return [*parts, *whole]


def at_work(footprints: Footprints) -> int:
    """Return the bytes of whole weights and gradients that a pass over divided weights holds at once, at most.

    Embeddings, final norm and head are whole from the beginning of a pass to its end.  Of the decoder's layers one
    computes while the next is gathered, through a buffer of its size; behind it a gradient is added up over the
    processes, through another.
    """
    base = footprints.policy.base
    decoder = base.get_decoder()
    layers: Iterable[nn.Module] = getattr(decoder, "layers", getattr(decoder, "h", ()))
    inner = [list(layer.parameters()) for layer in layers]
    ids = {id(parameter) for parameters in inner for parameter in parameters}
    outer = [parameter for parameter in base.parameters() if id(parameter) not in ids]
    layer = max((tensor_bytes(parameters) for parameters in inner), default=0)
    gradient = max((tensor_bytes(p for p in parameters if p.requires_grad) for parameters in inner), default=0)
    rest, rest_gradient = tensor_bytes(outer), tensor_bytes(p for p in outer if p.requires_grad)
    return rest + max(3 * layer + 2 * gradient + rest_gradient, 2 * rest_gradient)


def capacity(device: torch.device) -> int | None:
    """Return the bytes a device can give, what is used already included; ``None`` where nobody says."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    limits = []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = Path(path).read_text(encoding="utf-8").strip() if Path(path).is_file() else "max"
        limits += [int(text)] if text.isdigit() else []
    try:
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # Windows has no such call
        return min(limits, default=None)
    return min(limits)


ASSUMED_PROMPT = 1024
"""Tokens of the longest prompt where the tasks cannot say."""

LOOKED_AT = 256
"""Prompts of a task whose length is looked at."""

BYTES_A_TOKEN = 3
"""Of text, where there is no tokenizer to count with: few enough to err on the side of more tokens."""

_UNITS = {"": 1, "k": 10**3, "ki": 2**10, "m": 10**6, "mi": 2**20, "g": 10**9, "gi": 2**30, "t": 10**12, "ti": 2**40}


def read_size(text: str) -> int:
    """Return the bytes that a size such as ``80GB`` or ``79.6GiB`` names.

    Raises:
        InputError: It names none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)b", text.strip(), re.IGNORECASE)
    size = int(float(match[1]) * _UNITS[match[2].lower()]) if match else 0
    if not size:
        raise InputError(f"--gpu: {text!r} is no size of memory; write 80GB or 79.6GiB")
    return size


def target_of(section: Model, gpu: str | None = None) -> Target:
    """Return what a recipe is planned for: a GPU of some size, or the device of this machine.

    Raises:
        InputError: The size cannot be read, or ``model.device`` is not there.
    """
    if gpu is not None:
        compute = torch.bfloat16 if section.dtype == "auto" else resolve_dtype(section.dtype, torch.device("cpu"))
        return Target("cuda", compute, read_size(gpu), f"a GPU of {gpu}")
    device = resolve_device(section.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "this machine"
    return Target(device.type, resolve_dtype(section.dtype, device, whole=section.lora is None), capacity(device), name)


def longest_prompt(recipe: Recipe, given: int | None = None) -> Prompts:
    """Return how long the longest prompt is taken to be, and how that is known.

    Tasks that must be played, and those whose data are not there, are taken to fill :data:`ASSUMED_PROMPT` tokens.

    Args:
        recipe: With tasks and tokenizer.
        given: What the caller says.
    """
    if given is not None:
        return Prompts(given, "as given")
    try:
        tasks = list(make_tasks(recipe).values())
    except (InputError, ImportError) as error:
        return Prompts(ASSUMED_PROMPT, f"assumed, for {first_line(error)}")
    if any(task.concurrency is not None for task in tasks):
        return Prompts(ASSUMED_PROMPT, "assumed, for episodes of several turns; --prompt-tokens says it better")
    codec = _codec(recipe.model)
    shown = [prompt for task in tasks for prompt in itertools.islice(task.prompts("train", recipe.seed), LOOKED_AT)]
    if codec is not None:
        return Prompts(
            max(len(codec.render(p.messages, p.chat)) for p in shown), f"the longest of {len(shown)} prompts"
        )
    text = max(sum(len(text.encode()) for text in prompt.texts) for prompt in shown)
    source = f"the longest of {len(shown)} prompts, at {BYTES_A_TOKEN} bytes a token for want of a tokenizer"
    return Prompts(math.ceil(text / BYTES_A_TOKEN), source)


def _codec(section: Model) -> Codec | None:
    """The recipe's codec; ``None`` where its tokenizer is not there, or not trained yet."""
    if section.preset == "tiny":
        return None
    try:
        return load_codec(section)
    except InputError:
        return None
