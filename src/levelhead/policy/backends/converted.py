"""A model whose weights lie in the compute type while it samples, so that autocast does not convert all at every token.

In training that is a small part of the work; a decoding step does little else than read weights, and would read and
write them three times over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from levelhead.policy.backends.base import PolicyLike


class Converted(nn.Module):
    """A policy's model whose linear layers read copies of their weights, as they are now, in the compute type.

    It computes to the bit what the model computes under autocast.  Layers are converted in order up to
    :attr:`~levelhead.policy.policy.Policy.merge_bytes` of copies; the others, and all where the types are the same,
    stay as they are.

    Args:
        policy: Of the model.
    """

    def __init__(self, policy: PolicyLike) -> None:
        super().__init__()
        self._model = (policy.base,)  # in a tuple, so that its weights are not this module's
        self._weights = {name: weight.detach().to(policy.compute_dtype) for name, weight in _coarser(policy)}

    def forward(self, **inputs: Any) -> Any:
        """Run the model with the converted weights."""
        if not self._weights:
            return self._model[0](**inputs)
        # Weights that layers share are converted one by one: an embedding stays in float32 where the output layer's
        # copy is not.
        return torch.func.functional_call(self._model[0], self._weights, (), inputs, tie_weights=False)


def converted_bytes(policy: PolicyLike) -> int:
    """Return the bytes of copies that a :class:`Converted` holds, of a model that may have no weights."""
    return sum(weight.numel() * policy.compute_dtype.itemsize for _, weight in _coarser(policy))


def _coarser(policy: PolicyLike) -> Iterator[tuple[str, Tensor]]:
    """The float32 weights that are multiplied in a coarser type, by name, as far as there is room for copies."""
    if policy.compute_dtype in (torch.float32, policy.base.dtype):
        return  # no autocast, see Policy.autocast
    room = policy.merge_bytes
    for path, module in policy.base.named_modules():
        if type(module) is not nn.Linear:
            continue
        for name, weight in module.named_parameters(recurse=False):
            size = weight.numel() * policy.compute_dtype.itemsize
            if weight.dtype == torch.float32 and size <= room:
                room -= size
                yield f"{path}.{name}", weight
