"""Known bugs, on purpose: mistakes that post-training code really makes, for the checks to be tried on."""

from faults.known import data, objective, optimizer, rollouts, sampler, settings, templates, trainer
from faults.known.registry import FAULTS, KINDS, Fault, inject

__all__ = [
    "FAULTS",
    "KINDS",
    "Fault",
    "data",
    "inject",
    "objective",
    "optimizer",
    "rollouts",
    "sampler",
    "settings",
    "templates",
    "trainer",
]
