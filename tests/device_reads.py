"""Counts what would make the host wait for a GPU, on any device."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"}


class Reads(TorchDispatchMode):
    """Counts operators that make the host wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = func._schema.name == "aten::index" and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        self.count += masks or func._schema.name in READS
        return func(*args, **(kwargs or {}))
