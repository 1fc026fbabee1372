"""One protocol for everything that a checkpoint restores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Stateful(Protocol):
    """Has a state that a resumed run goes on with, as modules and optimizers of PyTorch have.

    A state holds dicts, lists, strings, numbers, ``None`` and tensors.  Its tensors may be the object's own, not
    copies: write the state, or copy them, before the object goes on.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later behaviour depends on and the recipe does not say."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that :meth:`state_dict` returned, on a fresh object of the same settings."""
        ...
