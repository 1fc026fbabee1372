"""Known bugs, on purpose: mistakes that post-training code really makes, for the checks to be tried on."""

from levelhead.lab.faults import objective, rollouts, sampler, templates, trainer
from levelhead.lab.faults.registry import FAULTS, Fault, inject

__all__ = ["FAULTS", "Fault", "inject", "objective", "rollouts", "sampler", "templates", "trainer"]
