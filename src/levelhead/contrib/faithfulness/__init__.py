"""``faithfulness``: answers with quoted evidence, on HaluEval's four kinds of rows."""

from levelhead.contrib.faithfulness.task import FaithfulnessTask

__all__ = ["FaithfulnessTask"]
