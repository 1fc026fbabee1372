"""Word problems with an exact numeric answer, in GSM8K's schema."""

from levelhead.tasks.math.task import MathTask

__all__ = ["MathTask"]
