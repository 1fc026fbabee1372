"""``advantage``: how rewards of a group become advantages."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from levelhead.objective.advantages import ADVANTAGES, Estimator
from levelhead.objective.registry import owners
from levelhead.recipe.variants import CUSTOM, REGISTERED, CustomVariant, VariantSection, choose, with_knobs


class AdvantageSection(VariantSection):
    """What every advantage estimator shares in a recipe."""

    FIRST = (
        *("kind", "path", "settings", "ddof", "eps", "clip"),
        *("statistics", "weights", "batch_norm", "k", "mix", "feature_weights"),
    )

    kind: str = "grpo"
    """Estimator: ``grpo``, ``dr_grpo``, ``rloo``, ... (see docs/objective.md)."""
    ddof: int = Field(1, ge=0, le=1)
    """Degrees of freedom of the standard deviation: 1 sample (TRL), 0 population."""
    eps: float = Field(1e-4, ge=0, le=1e3)
    """Added to the standard deviation."""
    clip: float | None = Field(None, gt=0, le=1e6)
    """Bound on the absolute advantage."""

    def make(self) -> Estimator:
        """Return the estimator that is asked for, with its settings."""
        return ADVANTAGES[self.kind](**self.knobs(ADVANTAGES[self.kind]))


@with_knobs(ADVANTAGES, "grpo", null=True)
class Advantage(AdvantageSection):
    """How rewards of a group become advantages; names and settings are those of ``objective.advantages``.

    Keys that default to null are settings of single estimators, whose own default then holds (docs/objective.md).
    """

    @model_validator(mode="after")
    def _options_belong_to_the_kind(self) -> Self:
        for name in type(self).model_fields.keys() - AdvantageSection.model_fields.keys():
            having = owners(ADVANTAGES, name)
            if self.kind not in having and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} is no setting of {self.kind!r}, but of {', '.join(having)}; remove it or change kind"
                )
        return self


class CustomAdvantage(CustomVariant, AdvantageSection):
    """An estimator of your own: a class that derives from ``levelhead.objective.advantages.Estimator``."""

    kind: Literal["custom"]
    """``custom``."""

    def make(self) -> Estimator:
        """Return the user's estimator; raises ``InputError`` where there is none, or its settings do not fit."""
        return self.load(Estimator, "grpo.advantage", {"ddof": self.ddof, "eps": self.eps})


AnyAdvantage = Annotated[
    Annotated[Advantage, Tag(REGISTERED)] | Annotated[CustomAdvantage, Tag(CUSTOM)], Discriminator(choose)
]
