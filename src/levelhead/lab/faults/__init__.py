"""Known bugs, on purpose: mistakes that post-training code really makes, for the checks to be tried on."""

from levelhead.lab.faults import data, objective, optimizer, rollouts, sampler, settings, templates, trainer
from levelhead.lab.faults.registry import FAULTS, KINDS, Fault, inject

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
