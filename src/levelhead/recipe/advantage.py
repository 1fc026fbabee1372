"""``advantage``: how rewards of a group become advantages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import Field

from levelhead.objective.advantages import ADVANTAGES, Estimator
from levelhead.recipe.variants import CustomVariant, Kinded, as_sections, one_of


class AdvantageSection(Kinded):
    """What every advantage estimator shares in a recipe."""

    FIRST = (
        *("kind", "path", "settings", "ddof", "eps", "clip"),
        *("statistics", "weights", "batch_norm", "k", "mix", "feature_weights"),
    )

    ddof: int = Field(1, ge=0, le=1)
    """Degrees of freedom of the standard deviation: 1 sample (TRL), 0 population."""
    eps: float = Field(1e-4, ge=0, le=1e3)
    """Added to the standard deviation."""
    clip: float | None = Field(None, gt=0, le=1e6)
    """Bound on the absolute advantage."""

    def make(self) -> Estimator:
        """Return the estimator that is asked for, with its settings: the section itself."""
        return cast("Estimator", self)


class CustomAdvantage(CustomVariant, AdvantageSection):
    """An estimator of your own: a class that derives from ``levelhead.objective.advantages.Estimator``."""

    kind: Literal["custom"]
    """``custom``."""

    def make(self) -> Estimator:
        """Return the user's estimator; raises ``InputError`` where there is none, or its settings do not fit."""
        return self.load(Estimator, "grpo.advantage", {"ddof": self.ddof, "eps": self.eps})


_SECTIONS = as_sections(ADVANTAGES, "grpo", AdvantageSection)
Advantage: Any = _SECTIONS["grpo"]
"""The section of ``kind: grpo``, which is the default."""

if TYPE_CHECKING:
    AnyAdvantage = AdvantageSection | CustomAdvantage
else:
    AnyAdvantage = one_of(_SECTIONS.values(), CustomAdvantage, "grpo")
