"""What a host has to wait for a GPU for, noticed on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = (
    *("nonzero", "argwhere", "unique", "masked_select", "repeat_interleave.Tensor", "repeat_interleave.self_Tensor"),
    *("_local_scalar_dense", "aten.item", "equal.default", "allclose"),
)


class Waits(TorchDispatchMode):
    """Notes every operator whose result, or the shape of whose result, the host has to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        given = args[1] if "index" in name and isinstance(args[1], (list, tuple)) else ()
        if any(one in name for one in WAITING) or any(x is not None and x.dtype == torch.bool for x in given):
            self.names.add(name)
        return func(*args, **(kwargs or {}))
