"""LLM judges: several providers, alone, one after the other or as a panel; calibrated, and watched while training."""

from levelhead.tasks.judges.grader import JudgeGrader, draw_lots

__all__ = ["JudgeGrader", "draw_lots"]
