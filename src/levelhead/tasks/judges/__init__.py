"""LLM judges: several providers, alone, one after the other or as a panel; calibrated, and watched while training."""

from levelhead.tasks.judges.lots import draw_lots
from levelhead.tasks.judges.task import JudgedTask

__all__ = ["JudgedTask", "draw_lots"]
