"""Levelhead: GRPO post-training for language models that keeps its head."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from levelhead.version import __version__

if TYPE_CHECKING:
    from levelhead.api import train
    from levelhead.recipe import Recipe

__all__ = ["Recipe", "__version__", "train"]

# Read when torch is imported: threads that wait for each other give up their core, unless the user wants it otherwise.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & set(os.environ):
    os.environ["OMP_WAIT_POLICY"], os.environ["KMP_BLOCKTIME"] = "PASSIVE", "0"

_LAZY = {"Recipe": "levelhead.recipe", "train": "levelhead.api"}


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that ``import levelhead`` needs no torch."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'levelhead' has no attribute {name!r}")
