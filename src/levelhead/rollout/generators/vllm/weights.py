"""The policy's weights by the names of its checkpoint, as a server loads them, and a way to tell that they changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from levelhead.errors import InputError
from levelhead.policy import four_bit
from levelhead.policy.policy import Policy


@torch.no_grad()
def named_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight of the model by its checkpoint name: adapters merged, shards gathered.

    What lies in four bits is unpacked.  A tied output embedding is sent under a name of its own as well: a server may
    keep it packed apart from the input embedding, and would go on with the old one without a word.  Every process of a
    run must iterate to the end, in lockstep: shards are gathered on the way.
    """
    wire = policy.compute_dtype if policy.compute_dtype.itemsize < 4 else None
    adapted = _adapted(policy.base) if policy.lora else {}
    for name, parameter in policy.base.named_parameters():
        if ".lora_" in name or ".original_module." in name:
            continue
        full = whole(four_bit.unpacked(parameter).detach())
        prefix, _, leaf = name.rpartition(".")
        if (module := adapted.get(prefix)) is not None and leaf == "weight":
            for adapter in module.active_adapters:
                if adapter in module.lora_A:
                    full = full + whole(module.get_delta_weight(adapter)).to(full.dtype)
        yield _plain(name), full.to(wire or full.dtype)
    if (head := tied_head(policy)) is not None:
        name, weight = head
        yield name, whole(weight.detach()).to(wire or weight.dtype).clone()


def whole(weight: Tensor) -> Tensor:
    """Return a weight gathered from the processes that hold its shards, or itself."""
    gather = getattr(weight, "full_tensor", None)
    full: Tensor = gather() if callable(gather) else weight
    return full


def tied_head(policy: Policy) -> tuple[str, Tensor] | None:
    """Return name and weight of an output embedding that is the input embedding; ``None`` where they are two."""
    head: Any = policy.base.get_output_embeddings()
    weight = getattr(head, "weight", None)
    shared = getattr(policy.base.get_input_embeddings(), "weight", None) is weight
    if not shared or not isinstance(weight, Tensor):
        return None
    if policy.lora and any(hasattr(end, "base_layer") for end in (head, policy.base.get_input_embeddings())):
        raise InputError(
            "model.lora.target_modules: an adapter on one of two tied embeddings makes them two, and a server of the "
            "base model has room for one; leave it out, or sample with generator.kind: local"
        )
    (name,) = [name for name, module in policy.base.named_modules() if module is head]
    return f"{name}.weight", weight


@torch.no_grad()
def fingerprint(policy: Policy) -> tuple[float, ...]:
    """Return numbers that are others once any trained weight is another: sum and norm of each, in float64.

    Of sharded weights only this process's part counts.
    """
    numbers: list[Tensor] = []
    for weight in policy.parameters or list(policy.model.parameters()):
        local = getattr(weight, "to_local", lambda weight=weight: weight)().double()
        numbers += [local.sum(), local.norm()]
    return tuple(torch.stack([number.cpu() for number in numbers]).tolist()) if numbers else ()


def _adapted(base: nn.Module) -> dict[str, Any]:
    """Layers with a low-rank adapter, by the name of the layer inside them."""
    from peft.tuners.lora import LoraLayer

    return {f"{name}.base_layer": module for name, module in base.named_modules() if isinstance(module, LoraLayer)}


def _plain(name: str) -> str:
    """The name without what PEFT puts around a layer."""
    return name.replace(".base_layer.", ".").replace(".modules_to_save.default.", ".")
