"""LLM judges: several providers, alone, one after the other or as a panel; calibrated, and watched while training."""

from levelhead.tasks.judges.task import JudgedTask, draw_lots

__all__ = ["JudgedTask", "draw_lots"]
