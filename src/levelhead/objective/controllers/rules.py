"""Rules that move a coefficient: a band and a constraint for the KL, a target for the entropy."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from levelhead.objective.controllers.base import Controller, ControllerState


class Band(Controller):
    """Multiply the coefficient above a band of the KL, divide it below, leave it inside.

    The rule of PPO's adaptive penalty (Schulman et al. 2017, arXiv:1707.06347, section 4), there with the band
    ``[target / 1.5, target * 1.5]`` and the factor 2.
    """

    name = "band"
    controls = frozenset({"kl"})
    starts_above_zero = True

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

    @property
    def bounds(self) -> tuple[float, float]:
        """``coef_min`` and ``coef_max``: the coefficient never leaves them."""
        return self.coef_min, self.coef_max

    def move(self, state: ControllerState, measured: float) -> ControllerState:
        """Move the coefficient by one factor if the KL lies outside the band."""
        move = self.factor if measured > self.high else 1 / self.factor if measured < self.low else 1.0
        return state.after(min(max(state.coef * move, self.coef_min), self.coef_max))


class Lagrangian(Controller):
    """Dual ascent on the constraint ``KL <= target``: ``beta <- max(beta_min, beta + eta (KL - target))``.

    The coefficient settles where the constraint binds, and falls to ``coef_min`` where it does not.
    """

    name = "lagrangian"
    controls = frozenset({"kl"})

    target: float = Field(ge=0)
    """The KL to stay at, in nats a token."""
    eta: float = Field(0.1, gt=0)
    """Change of the coefficient for one nat too many."""
    coef_min: float = Field(0.0, ge=0)
    """Lowest coefficient."""
    coef_max: float = Field(10.0, gt=0)
    """Highest coefficient."""

    @property
    def bounds(self) -> tuple[float, float]:
        """``coef_min`` and ``coef_max``: the coefficient never leaves them."""
        return self.coef_min, self.coef_max

    def move(self, state: ControllerState, measured: float) -> ControllerState:
        """Take one step of dual ascent."""
        moved = state.coef + self.eta * (measured - self.target)
        return state.after(min(max(moved, self.coef_min), self.coef_max))


class EntropyTarget(Controller):
    """The bonus grows while the entropy is below a target, and is off above it.

    With ``e`` the entropy of the batch: ``coef = c`` if ``e <= target`` and 0 otherwise; then ``c`` rises by ``delta``
    below the target and falls by ``delta`` above it (He et al. 2025, Skywork-OR1, arXiv:2505.22312, section on
    adaptive entropy control).  Bounds on ``c`` are added here, so that a bonus that is not answered cannot wind up.
    """

    name = "entropy_target"
    controls = frozenset({"entropy"})

    target: float = Field(ge=0)
    """Entropy to keep, in nats a token."""
    delta: float = Field(0.005, gt=0)
    """Change of the coefficient in one step."""
    coef_min: float = Field(0.0, ge=0)
    """Lowest coefficient below the target."""
    coef_max: float = Field(0.1, gt=0)
    """Highest coefficient."""

    @property
    def bounds(self) -> tuple[float, float]:
        """``coef_min`` and ``coef_max``, between which ``c`` stays."""
        return self.coef_min, self.coef_max

    def move(self, state: ControllerState, measured: float) -> ControllerState:
        """Set the coefficient for this entropy, then move ``c``, which is the memory, for the next one."""
        coef = state.memory if measured <= self.target else 0.0
        direction = (measured < self.target) - (measured > self.target)
        memory = min(max(state.memory + self.delta * direction, self.coef_min), self.coef_max)
        return state.after(coef, memory)
