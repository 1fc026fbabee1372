"""What workflows are run on: problems from files, problems of our own, and how an epoch mixes them."""

from levelhead.contrib.workflow.problems.base import DIFFICULTIES, DOMAINS, Difficulty, Domain, Problem, epoch
from levelhead.contrib.workflow.problems.load import load
from levelhead.contrib.workflow.problems.made import generate

__all__ = ["DIFFICULTIES", "DOMAINS", "Difficulty", "Domain", "Problem", "epoch", "generate", "load"]
