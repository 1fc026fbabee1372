"""``fairness``: BBQ's multiple-choice questions about people, answered with a one-sentence justification."""

from levelhead.contrib.fairness.task import FairnessTask

__all__ = ["FairnessTask"]
