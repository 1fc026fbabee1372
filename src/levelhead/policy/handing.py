"""How weights get from where they were loaded to the processes that hold a piece of each.

Either every process has them whole, or the first alone, and hands out one tensor after the other.  No process needs
room for more than a unit of the model besides what it has, and lets go of what it has unit by unit.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from levelhead.errors import InputError


def skeleton(model: nn.Module) -> Any:
    """Return a copy of a model, its hooks and buffers, without memory for its weights: those are on the meta device."""
    bare: dict[int, Any] = {
        id(weight): nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=weight.requires_grad)
        for weight in model.parameters()
    }
    return copy.deepcopy(model, bare)


class Handing:
    """Fills a model with whole weights, a module at a time, on its way to be divided.

    Args:
        model: To be filled; what it already holds on ``device`` stays.
        given: Whole weights by the names of the model's parameters, let go of as they are taken; where one is missing,
            there is room for it.
        device: Where the model goes.
        handed_out: Whether the first process alone has ``given``, and hands it out.

    Raises:
        InputError: The processes do not build the same model.
    """

    def __init__(self, model: nn.Module, given: dict[str, Tensor], device: torch.device, *, handed_out: bool) -> None:
        self._given, self._device, self._handed_out = given, device, handed_out
        self._names = {id(weight): name for name, weight in model.named_parameters()}
        self._owners: dict[str, list[tuple[nn.Module, str]]] = {}
        for module in model.modules():
            for key, weight in module._parameters.items():
                if weight is not None:
                    self._owners.setdefault(self._names[id(weight)], []).append((module, key))
        self._kinds = {name: (tuple(weight.shape), weight.dtype) for name, weight in model.named_parameters()}
        if handed_out:
            self._kinds = _agreed(self._kinds)

    @torch.no_grad()
    def fill(self, module: nn.Module) -> None:
        """Fill what lies below a module and is not divided yet; a collective where weights are handed out."""
        for weight in list(module.parameters()):
            name = self._names.pop(id(weight), None)
            if name is None:  # divided, as part of another unit
                continue
            whole = self._whole(name)
            if whole is not weight:
                fresh = nn.Parameter(whole, requires_grad=weight.requires_grad)
                for owner, key in self._owners[name]:
                    owner._parameters[key] = fresh

    def _whole(self, name: str) -> Tensor:
        shape, dtype = self._kinds[name]
        mine = self._given.pop(name, None)
        if self._handed_out:
            return _from_first(mine, shape, dtype, self._device)
        if mine is None:
            return torch.zeros(shape, dtype=dtype, device=self._device)
        return mine if mine.device == self._device else mine.detach().to(self._device)


@torch.no_grad()
def hand_out_rest(model: nn.Module, device: torch.device) -> None:
    """Bring what a model holds besides its weights (tables of angles, masks) to all processes; a collective."""
    for module in model.modules():
        for tensors in (module._buffers, vars(module)):
            for key, tensor in list(tensors.items()):
                if isinstance(tensor, Tensor) and not isinstance(tensor, nn.Parameter):
                    tensors[key] = _from_first(tensor, tuple(tensor.shape), tensor.dtype, device)


def anywhere(flag: bool) -> bool:
    """Whether something is so on any process; a collective."""
    flags: list[bool] = [False] * dist.get_world_size()
    dist.all_gather_object(flags, flag)
    return any(flags)


def _from_first(mine: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The first process's tensor, on every process."""
    if dist.get_rank() == 0 and mine is not None:
        whole = mine.detach().to(device).contiguous()
    else:
        whole = torch.empty(shape, dtype=dtype, device=device)
    dist.broadcast(whole, src=0)
    return whole


def _agreed(kinds: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """The first process's names, shapes and types, once it is certain that all have the same names and shapes."""
    parts: list[dict[str, tuple[tuple[int, ...], torch.dtype]]] = [{}] * dist.get_world_size()
    dist.all_gather_object(parts, dict(kinds))
    first = parts[0]
    shapes = [[(name, shape) for name, (shape, _) in part.items()] for part in parts]
    for rank, other in enumerate(shapes):
        if other != shapes[0]:
            odd = next((b for a, b in zip(shapes[0], other, strict=False) if a != b), ("their number", ()))
            raise InputError(
                f"model: process {rank} builds another model than the first ({odd[0]}); give all the same files"
            )
    return first
