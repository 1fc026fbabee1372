"""``kl.controller`` and ``entropy.controller``: coefficients that follow what is measured."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from levelhead.section import Section


class KeepCoef(Section):
    """The coefficient stays as it was given."""

    kind: Literal["fixed"] = "fixed"
    """``fixed``."""


class KlBand(Section):
    """The coefficient is multiplied above a band of the KL, and divided below it."""

    kind: Literal["band"]
    """``band``."""
    low: float = Field(ge=0)
    """Lower end of the band, in nats a token."""
    high: float = Field(gt=0)
    """Upper end of the band, in nats a token."""
    factor: float = Field(1.5, gt=1)
    """What the coefficient is multiplied or divided by at every step outside the band."""
    coef_min: float = Field(1e-6, gt=0)
    """Lowest coefficient."""
    coef_max: float = Field(10.0, gt=0)
    """Highest coefficient."""

    @model_validator(mode="after")
    def _ends_in_order(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        return self


class KlLagrangian(Section):
    """The coefficient follows the constraint that the KL stays at a target."""

    kind: Literal["lagrangian"]
    """``lagrangian``."""
    target: float = Field(ge=0)
    """The KL to stay at, in nats a token."""
    eta: float = Field(0.1, gt=0)
    """Change of the coefficient for one nat too many."""
    coef_min: float = Field(0.0, ge=0)
    """Lowest coefficient."""
    coef_max: float = Field(10.0, gt=0)
    """Highest coefficient."""


KlController = Annotated[KeepCoef | KlBand | KlLagrangian, Field(discriminator="kind")]


class EntropyTarget(Section):
    """The bonus grows while the entropy is below a target, and is off above it (Skywork-OR1)."""

    kind: Literal["entropy_target"]
    """``entropy_target``."""
    target: float = Field(ge=0)
    """Entropy to keep, in nats a token."""
    delta: float = Field(0.005, gt=0)
    """Change of the coefficient in one step."""
    coef_min: float = Field(0.0, ge=0)
    """Lowest coefficient below the target."""
    coef_max: float = Field(0.1, gt=0)
    """Highest coefficient."""


EntropyController = Annotated[KeepCoef | EntropyTarget, Field(discriminator="kind")]
