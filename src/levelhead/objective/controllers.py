"""Controllers: coefficients of the KL and of the entropy bonus that follow what is measured.

A controller is a class with its settings; its state is a small record, made to be saved with a checkpoint.
``step(state, measured)`` takes the KL or the entropy of the batch just trained on, in nats a token, and returns the
state whose ``coef`` weighs the term in the next update.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from levelhead.objective.registry import registry
from levelhead.section import Section


@dataclass(frozen=True, slots=True)
class ControllerState:
    """State of a controller between two updates.

    Attributes:
        coef: Coefficient of the term in the coming update.
        memory: What the controller carries on, as a plain JSON value; equal to ``coef`` where the two are one.
        steps: Measurements taken so far.
    """

    coef: float
    memory: Any
    steps: int = 0

    def after(self, coef: float, memory: Any = None) -> ControllerState:
        """Return the state after one more measurement; the memory is the coefficient unless given."""
        return ControllerState(coef, coef if memory is None else memory, self.steps + 1)

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ControllerState:
        """Return the state that :meth:`to_json` wrote."""
        return cls(coef=float(record["coef"]), memory=record["memory"], steps=int(record["steps"]))


class Controller(Section):
    """A rule that moves a coefficient by what is measured: its fields are its settings, :meth:`move` is its rule.

    A subclass is a whole controller; the docstring of a field is the documentation of its key.  Coefficients are never
    negative: which way a term pulls is decided in one place, and not here.
    """

    name: ClassVar[str] = ""
    """Its ``kind`` in a recipe; a class of your own needs none."""
    controls: ClassVar[frozenset[str]] = frozenset({"kl", "entropy"})
    """Terms whose coefficient it can move."""
    moves: ClassVar[bool] = True
    """Whether it may raise a coefficient of 0, so that the term is measured even while it costs nothing."""
    starts_above_zero: ClassVar[bool] = False
    """Whether it multiplies the coefficient, so that it never leaves 0."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest coefficient that it gives."""
        return 0.0, math.inf

    def first(self, coef: float) -> ControllerState:
        """Return the state before the first measurement.

        Args:
            coef: Coefficient that the recipe gives.
        """
        return ControllerState(coef, coef)

    def move(self, state: ControllerState, measured: float) -> ControllerState:
        """Return the state whose ``coef`` weighs the term after a measurement.

        Args:
            state: That after the measurement before, or of :meth:`first`.
            measured: KL or entropy of the batch just trained on, in nats a token; finite.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method move(self, state, measured)")

    def begin(self, coef: float) -> ControllerState:
        """Return the state before the first measurement.

        Args:
            coef: Coefficient that the recipe gives.

        Raises:
            ValueError: The coefficient does not fit the settings.
        """
        if not 0 <= coef < math.inf:
            raise ValueError(f"coef must be finite and 0 or more, got {coef!r}")
        low, high = self.bounds
        if not (low <= coef <= high and (coef > 0 or not self.starts_above_zero)):
            least = "0 <" if self.starts_above_zero else "0 <="
            raise ValueError(
                f"{self._label} needs {least} coef_min <= coef <= coef_max, got {low!r}, {coef!r} and {high!r}"
            )
        return self._checked(self.first(coef))

    def step(self, state: ControllerState, measured: float) -> ControllerState:
        """Return the state after a measurement in nats a token.

        Raises:
            ValueError: The measurement is not finite, or the rule gives what is no coefficient or cannot be saved.
        """
        if not math.isfinite(measured):
            raise ValueError(f"a controller was given the measurement {measured}; it must be finite")
        return self._checked(self.move(state, measured))

    def _checked(self, state: ControllerState) -> ControllerState:
        """Return the state as a checkpoint would hold it."""
        if not isinstance(state, ControllerState):
            raise ValueError(f"{self._label}: it must return a ControllerState, got {type(state).__name__}")
        if not 0 <= state.coef < math.inf:
            raise ValueError(f"{self._label}: a coefficient must be finite and 0 or more, got {state.coef!r}")
        try:
            return ControllerState.from_json(json.loads(json.dumps(state.to_json())))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self._label}: its memory must be made of JSON values: {error}") from None

    @property
    def _label(self) -> str:
        return f"controller {self.name or type(self).__name__}"


class Fixed(Controller):
    """The coefficient stays as it was given."""

    name = "fixed"
    moves = False

    def move(self, state: ControllerState, measured: float) -> ControllerState:  # noqa: ARG002
        """Count the measurement and change nothing."""
        return state.after(state.coef)


class Bounded(Controller):
    """A controller whose coefficient, or what it is made from, stays between two bounds."""

    coef_min: float = Field(0.0, ge=0)
    """Lowest coefficient."""
    coef_max: float = Field(10.0, gt=0)
    """Highest coefficient."""

    @property
    def bounds(self) -> tuple[float, float]:
        """``coef_min`` and ``coef_max``: the coefficient never leaves them."""
        return self.coef_min, self.coef_max

    def bounded(self, coef: float) -> float:
        """Return the nearest coefficient within the bounds."""
        return min(max(coef, self.coef_min), self.coef_max)


class Band(Bounded):
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

    @model_validator(mode="after")
    def _ends_in_order(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        return self

    def move(self, state: ControllerState, measured: float) -> ControllerState:
        """Move the coefficient by one factor if the KL lies outside the band."""
        move = self.factor if measured > self.high else 1 / self.factor if measured < self.low else 1.0
        return state.after(self.bounded(state.coef * move))


class Lagrangian(Bounded):
    """Dual ascent on the constraint ``KL <= target``: ``beta <- max(beta_min, beta + eta (KL - target))``.

    The coefficient settles where the constraint binds, and falls to ``coef_min`` where it does not.
    """

    name = "lagrangian"
    controls = frozenset({"kl"})

    target: float = Field(ge=0)
    """The KL to stay at, in nats a token."""
    eta: float = Field(0.1, gt=0)
    """Change of the coefficient for one nat too many."""

    def move(self, state: ControllerState, measured: float) -> ControllerState:
        """Take one step of dual ascent."""
        return state.after(self.bounded(state.coef + self.eta * (measured - self.target)))


class EntropyTarget(Bounded):
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
    coef_max: float = Field(0.1, gt=0)
    """Highest coefficient."""

    def move(self, state: ControllerState, measured: float) -> ControllerState:
        """Set the coefficient for this entropy, then move ``c``, which is the memory, for the next one."""
        coef = state.memory if measured <= self.target else 0.0
        direction = (measured < self.target) - (measured > self.target)
        memory = self.bounded(state.memory + self.delta * direction)
        return state.after(coef, memory)


CONTROLLERS = registry(__name__, Controller, [Fixed, Band, Lagrangian, EntropyTarget])
"""Every controller by the name that it has in a recipe."""
