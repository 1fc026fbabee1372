"""``tasks[].judge``: a language model that grades what rules cannot see."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from levelhead.recipe.endpoint import Endpoint


class Judge(Endpoint):
    """A grade from a chat endpoint for every answer that the rules find right.

    The judge can only take away: an answer of reward r > 0 and grade g in [0, 1] is worth
    ``r * (1 - weight * (1 - g))``.  Answers that the rules reject are not shown to it, so that no flattery of the judge
    makes a wrong answer pay.
    """

    weight: float = Field(0.5, gt=0, le=1)
    """Share of the reward that a grade of 0 takes away."""
    rubric: str | None = None
    """What to grade; the task's own rubric unless given."""
    max_tokens: int = Field(256, ge=1)
    """Completion budget of one verdict."""
    attempts: int = Field(2, ge=1, le=5)
    """How often a verdict without a grade is asked for again, the first time included."""
    on_failure: Literal["rule", "drop"] = "rule"
    """A verdict without a grade: the rewards of its group are those of the ``rule``s alone, or ``drop`` the rollout,
    and by lot as large a share of the group's answers that the judge was not asked about.  Both are counted."""
