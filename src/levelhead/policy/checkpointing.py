"""Activation checkpointing: layers that recompute their activations in the backward pass, to save memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def has_checkpointing(model: Any) -> bool:
    """Return whether some layer of a model recomputes its activations in the backward pass."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def set_checkpointing(model: Any, *, on: bool) -> None:
    """Let a model recompute its activations in the backward pass, or keep them."""
    if on:
        without_renaming_notices(
            lambda: model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        )
    else:
        without_renaming_notices(model.gradient_checkpointing_disable)


def without_renaming_notices(call: Callable[[], T]) -> T:
    """Return what a call returns, and let it use names of checkpointing that transformers is about to drop in silence.

    Peft asks a model for ``is_gradient_checkpointing``, and nobody who trains can do anything about it.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`[a-z_]*gradient_checkpointing", FutureWarning)
        return call()
