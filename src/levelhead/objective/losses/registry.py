"""The policy losses by name."""

from __future__ import annotations

from typing import Any

from levelhead.objective.losses.base import Loss
from levelhead.objective.registry import build, owners, registry

LOSSES = registry(
    "levelhead.objective.losses",
    Loss,
    [
        "ppo:PpoClip",
        "reinforce:Reinforce",
        "gspo:Gspo",
        "gspo:GspoToken",
        "cispo:Cispo",
        "gmpo:Gmpo",
        "sapo:Sapo",
        "covariance:ClipCov",
        "covariance:KlCov",
    ],
)
"""Every loss by the name that it has in a recipe."""


def make_loss(name: str, **knobs: Any) -> Loss:
    """Return the loss called ``name``; knobs that are left out, or ``None``, are as its paper has them.

    Raises:
        ValueError: Unknown name, or a knob that it does not have or that is out of range.
    """
    if name not in LOSSES:
        raise ValueError(f"unknown policy loss {name!r}; choose one of {', '.join(LOSSES)}")
    knobs = {knob: value for knob, value in knobs.items() if value is not None}
    for knob in knobs.keys() - LOSSES[name].model_fields.keys():
        if having := owners(LOSSES, knob):
            raise ValueError(f"{knob} applies to {' and '.join(having)}, not to {name}")
    return build(LOSSES[name], knobs, f"policy loss {name}")
