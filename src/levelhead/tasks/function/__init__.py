"""The user's own data and reward functions, with TRL's signature."""

from levelhead.tasks.function.rewards import TrainerState
from levelhead.tasks.function.task import FunctionTask

__all__ = ["FunctionTask", "TrainerState"]
