"""What an optimizer update did to the next rollouts' validity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Collapse:
    """How often an update was followed by a collapse.

    Attributes:
        updates: Updates with rollouts on both sides, before which there was validity to lose.
        collapsed: Those whose next rollouts had lost more than half of it.
        at: Indices of the batches whose update was followed by a collapse.
    """

    updates: int
    collapsed: int
    at: tuple[int, ...]

    @property
    def rate(self) -> float | None:
        """Return the share of updates that were followed by a collapse; ``None`` where there was no update."""
        return self.collapsed / self.updates if self.updates else None


def collapse_after_update(validity: Sequence[float], updated: Sequence[bool] | None = None) -> Collapse:
    """Count the updates whose next rollouts lost more than half of the validity they had.

    Args:
        validity: Share of valid answers of each rollout batch, in order.
        updated: Whether the optimizer stepped after each batch; after every one unless given.

    Raises:
        ValueError: The two differ in length.
    """
    stepped = [True] * len(validity) if updated is None else list(updated)
    if len(stepped) != len(validity):
        raise ValueError(f"{len(validity)} batches need {len(validity)} marks of updates, got {len(stepped)}")
    # The last batch's update has no rollouts after it, and a batch without validity has none to lose.
    judged = [i for i in range(len(validity) - 1) if stepped[i] and validity[i] > 0]
    at = tuple(i for i in judged if validity[i + 1] < validity[i] / 2)
    return Collapse(len(judged), len(at), at)
