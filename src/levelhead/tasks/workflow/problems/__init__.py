"""What workflows are run on: problems from files, problems of our own, and how an epoch mixes them."""

from levelhead.tasks.workflow.problems.base import DIFFICULTIES, DOMAINS, Difficulty, Domain, Problem, epoch
from levelhead.tasks.workflow.problems.load import load
from levelhead.tasks.workflow.problems.made import generate

__all__ = ["DIFFICULTIES", "DOMAINS", "Difficulty", "Domain", "Problem", "epoch", "generate", "load"]
