"""The last layer's work at the positions that are asked for, and nowhere else.

Of a prompt's tokens all but the last predict nothing that is trained on.  The last layer still needs their keys and
values, but neither their queries nor their feed-forward.  Hooks take the rows that matter out before a module that
treats every token by itself, and put them back behind it, with zeros where nobody looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

_STATE = "_levelhead_needed"


def trim_last_layer(decoder: nn.Module) -> list[RemovableHandle]:
    """Install the hooks on a decoder's last layer, where it has modules that can be trimmed; returns them.

    They act where the model is called with ``trees`` that have ``needed`` positions, and are kept by copies.
    """
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        return []
    layer = layers[-1]
    hooks = [layer.register_forward_pre_hook(_announce, with_kwargs=True)]
    for module in _tokenwise(layer):
        hooks += [module.register_forward_pre_hook(_take), module.register_forward_hook(_put_back)]
    return hooks


def _tokenwise(layer: nn.Module) -> Iterator[nn.Module]:
    """Modules of a layer that treat every token by itself; mixtures of experts return more than a tensor."""
    attention, feed_forward = getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
    for name in ("q_proj", "o_proj"):
        module = getattr(attention, name, None)
        if isinstance(module, nn.Module):
            yield module
    if isinstance(feed_forward, nn.Module) and not hasattr(feed_forward, "experts"):
        yield feed_forward


def _announce(layer: nn.Module, _args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    # Set on every call, gradient checkpointing's second one included, so that nothing of an earlier batch is left.
    needed = getattr(kwargs.get("trees"), "needed", None)
    for module in _tokenwise(layer):
        setattr(module, _STATE, needed)


def _take(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    needed: Tensor | None = getattr(module, _STATE, None)
    if needed is None:
        return None
    setattr(module, _STATE + "_length", args[0].shape[1])
    return (args[0].index_select(1, needed), *args[1:])


def _put_back(module: nn.Module, _args: tuple[Any, ...], output: Any) -> Tensor | None:
    needed: Tensor | None = getattr(module, _STATE, None)
    if needed is None or not isinstance(output, torch.Tensor):
        return None
    length: int = getattr(module, _STATE + "_length")
    whole = output.new_zeros((output.shape[0], length, output.shape[2]))
    return whole.index_copy(1, needed, output)
