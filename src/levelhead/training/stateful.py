"""One protocol for everything that a checkpoint restores, and how checkpoints of the layout before it are read."""

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


def trainer_state(trainer: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a GRPO trainer that a checkpoint holds.

    Newer checkpoints hold it whole in ``training.pt``.  Older ones hold the numbers in ``state.json`` and the
    tensors in ``training.pt``, each part of the trainer under names of its own.

    Args:
        trainer: ``trainer`` of ``state.json``; empty in newer checkpoints.
        training: Contents of ``training.pt``.
    """
    if "trainer" in training:
        return dict(training["trainer"])
    state: dict[str, Any] = {
        "coefficients": trainer["coefficients"],
        "advantages": trainer["moments"],
        "unrated": {"streaks": trainer.get("unrated", {})},
        "merger": training["merger"],
        "batches": {"pending": trainer.get("pending", {}), "weights": training.get("pending", [])},
    }
    if "guard" in trainer:
        state["trust_region"] = {"guard": trainer["guard"], "weights": training.get("guard", [])}
    return state


def watch_state(identities: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of the observers of batches that a checkpoint holds.

    Args:
        identities: ``identities`` of ``state.json``; empty in newer checkpoints.
        training: Contents of ``training.pt``.
    """
    if "watch" in training:
        return dict(training["watch"])
    reported = [code for code in identities.get("told", ()) if code != "resume-differs"]
    items = training.get("identities")
    # Checkpoints of before there was any say nothing of the items of their epoch.
    return {"reported": reported, "items": items if items or identities else None}
