"""Controllers: coefficients of the KL and of the entropy bonus that follow what is measured.

A controller is a class with its settings; its state is a small record, made to be saved with a checkpoint.
``step(state, measured)`` takes the KL or the entropy of the batch just trained on, in nats a token, and returns the
state whose ``coef`` weighs the term in the next update.
"""

from levelhead.objective.controllers.base import Controller, ControllerState, Fixed
from levelhead.objective.controllers.rules import Band, EntropyTarget, Lagrangian
from levelhead.objective.registry import registry

CONTROLLERS = registry(
    "levelhead.objective.controllers",
    Controller,
    [
        "base:Fixed",
        "rules:Band",
        "rules:Lagrangian",
        "rules:EntropyTarget",
    ],
)
"""Every controller by the name that it has in a recipe."""

__all__ = ["CONTROLLERS", "Band", "Controller", "ControllerState", "EntropyTarget", "Fixed", "Lagrangian"]
