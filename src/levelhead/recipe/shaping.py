"""``tasks[].shaping``: what is done to rewards before they become advantages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from levelhead.objective.shaping import SHAPERS, RewardShaping, Shaper, ZScore
from levelhead.recipe.variants import CustomVariant, as_sections, one_of
from levelhead.section import Section


class CustomShaper(CustomVariant):
    """A shaper of your own: a class that derives from ``levelhead.objective.shaping.Shaper``."""


if TYPE_CHECKING:
    AnyShaper = Shaper | CustomShaper
else:
    AnyShaper = one_of(as_sections(SHAPERS).values(), CustomShaper)


class Shaping(Section):
    """What is done to a task's rewards before they become advantages, in this order; by default nothing."""

    length: AnyShaper | None = None
    """Added to the reward: a length penalty.  ``custom`` may change rewards in any other way."""
    zscore: ZScore | None = None
    """Running normalisation."""
    scale: float = Field(1.0, gt=0, le=1e6)
    """Factor."""
    clip: tuple[float, float] | None = None
    """Lowest and highest reward."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise ValueError(f"clip must be a lower and a higher bound, got {list(self.clip)}")
        return self

    def make(self, budget: int, key: str) -> RewardShaping:
        """Return the shaping that is asked for; a class of the user's own is loaded.

        Args:
            budget: Most tokens of a completion.
            key: Of this section.

        Raises:
            InputError: There is no such class, or a setting does not fit it.
            ValueError: Settings do not fit the budget.
        """
        length = self.length.load(Shaper, f"{key}.length") if isinstance(self.length, CustomShaper) else self.length
        return RewardShaping(length and length.with_budget(budget), self.zscore, self.scale, self.clip)
