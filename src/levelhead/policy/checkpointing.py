"""Activation checkpointing: layers that recompute their activations in the backward pass, to save memory."""

from __future__ import annotations

from typing import Any

from levelhead.policy.quiet import without_library_notices


def has_checkpointing(model: Any) -> bool:
    """Return whether some layer of a model recomputes its activations in the backward pass."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def set_checkpointing(model: Any, *, on: bool) -> None:
    """Let a model recompute its activations in the backward pass, or keep them."""
    if on:
        without_library_notices(
            lambda: model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        )
    else:
        without_library_notices(model.gradient_checkpointing_disable)
