"""What one of several processes holds, where they divide the weights (``distributed.shard: full``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import Tensor, nn

from levelhead.policy.footprint import Footprints
from levelhead.preflight.plan import Part
from levelhead.recipe import Recipe

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
        trained = _bytes(footprints.policy.parameters)
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
    layer = max((_bytes(parameters) for parameters in inner), default=0)
    gradient = max((_bytes(p for p in parameters if p.requires_grad) for parameters in inner), default=0)
    rest, rest_gradient = _bytes(outer), _bytes(p for p in outer if p.requires_grad)
    return rest + max(3 * layer + 2 * gradient + rest_gradient, 2 * rest_gradient)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
