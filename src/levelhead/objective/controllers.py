"""Controllers: coefficients of the KL and of the entropy bonus that follow what is measured.

A controller is a frozen record of settings; its state is another small record, made to be saved with a checkpoint.
``step(state, measured)`` takes the KL or the entropy of the batch about to be trained on, in nats a token, and
returns the state whose ``coef`` weighs the term in that update.  Coefficients are never negative: which way a term
pulls is decided in one place, and not here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ControllerState:
    """Where a controller stands.

    Attributes:
        coef: Coefficient of the term in the coming update.
        memory: What the controller carries on; equal to ``coef`` where the two are one.
        steps: Measurements taken so far.
    """

    coef: float
    memory: float
    steps: int = 0

    def to_json(self) -> dict[str, float]:
        """Return a dict of plain numbers."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ControllerState:
        """Return the state that :meth:`to_json` wrote."""
        return cls(coef=float(record["coef"]), memory=float(record["memory"]), steps=int(record["steps"]))


class Controller(Protocol):
    """What every controller does."""

    def begin(self) -> ControllerState:
        """Return the state before the first measurement."""
        ...

    def step(self, state: ControllerState, measured: float) -> ControllerState:
        """Return the state after a measurement in nats a token; raises ``ValueError`` where it is not finite."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """The coefficient as it was given.

    Attributes:
        coef: The coefficient.
    """

    coef: float

    def __post_init__(self) -> None:
        _not_negative("coef", self.coef)

    def begin(self) -> ControllerState:
        """Return the state before the first measurement."""
        return ControllerState(self.coef, self.coef)

    def step(self, state: ControllerState, measured: float) -> ControllerState:
        """Count the measurement and change nothing."""
        _finite(measured)
        return _next(state, self.coef)


@dataclass(frozen=True, slots=True)
class Band:
    """Multiply the coefficient above a band of the KL, divide it below, leave it inside.

    The rule of PPO's adaptive penalty (Schulman et al. 2017, arXiv:1707.06347, section 4), there with the band
    ``[target / 1.5, target * 1.5]`` and the factor 2.

    Attributes:
        coef: Coefficient at the start; above 0, since a product never leaves 0.
        low: Lower end of the band, in nats a token.
        high: Upper end of the band, in nats a token.
        factor: What the coefficient is multiplied or divided by.
        coef_min: Lowest coefficient.
        coef_max: Highest coefficient.
    """

    coef: float
    low: float
    high: float
    factor: float = 1.5
    coef_min: float = 1e-6
    coef_max: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ValueError(f"a band needs 0 <= low < high, got {self.low!r} and {self.high!r}")
        if not self.factor > 1:
            raise ValueError(f"factor must be above 1, got {self.factor!r}")
        if not 0 < self.coef_min <= self.coef <= self.coef_max < math.inf:
            raise ValueError(
                f"a band controller needs 0 < coef_min <= coef <= coef_max, got {self.coef_min!r}, {self.coef!r} "
                f"and {self.coef_max!r}"
            )

    def begin(self) -> ControllerState:
        """Return the state before the first measurement."""
        return ControllerState(self.coef, self.coef)

    def step(self, state: ControllerState, measured: float) -> ControllerState:
        """Move the coefficient by one factor if the KL lies outside the band."""
        _finite(measured)
        move = self.factor if measured > self.high else 1 / self.factor if measured < self.low else 1.0
        return _next(state, min(max(state.coef * move, self.coef_min), self.coef_max))


@dataclass(frozen=True, slots=True)
class Lagrangian:
    """Dual ascent on the constraint ``KL <= target``: ``beta <- max(beta_min, beta + eta (KL - target))``.

    The coefficient settles where the constraint binds, and falls to ``coef_min`` where it does not.

    Attributes:
        coef: Coefficient (the multiplier beta) at the start.
        target: The KL to stay at, in nats a token.
        eta: Step size of the dual ascent.
        coef_min: Lowest coefficient.
        coef_max: Highest coefficient.
    """

    coef: float
    target: float
    eta: float = 0.1
    coef_min: float = 0.0
    coef_max: float = 10.0

    def __post_init__(self) -> None:
        _not_negative("target", self.target)
        if not self.eta > 0:
            raise ValueError(f"eta must be above 0, got {self.eta!r}")
        _ordered(self.coef_min, self.coef, self.coef_max)

    def begin(self) -> ControllerState:
        """Return the state before the first measurement."""
        return ControllerState(self.coef, self.coef)

    def step(self, state: ControllerState, measured: float) -> ControllerState:
        """Take one step of dual ascent."""
        _finite(measured)
        moved = state.coef + self.eta * (measured - self.target)
        return _next(state, min(max(moved, self.coef_min), self.coef_max))


@dataclass(frozen=True, slots=True)
class EntropyTarget:
    """Entropy bonus that grows while the entropy is below a target, and is off above it.

    With ``e`` the entropy of the batch: ``coef = c`` if ``e <= target`` and 0 otherwise; then ``c`` rises by ``delta``
    below the target and falls by ``delta`` above it (He et al. 2025, Skywork-OR1, arXiv:2505.22312, section on
    adaptive entropy control).  Bounds on ``c`` are added here, so that a bonus that is not answered cannot wind up.

    Attributes:
        coef: ``c`` at the start.
        target: Entropy to keep, in nats a token.
        delta: Change of ``c`` in one step.
        coef_min: Lowest ``c``.
        coef_max: Highest ``c``.
    """

    target: float
    coef: float = 0.0
    delta: float = 0.005
    coef_min: float = 0.0
    coef_max: float = 0.1

    def __post_init__(self) -> None:
        _not_negative("target", self.target)
        if not self.delta > 0:
            raise ValueError(f"delta must be above 0, got {self.delta!r}")
        _ordered(self.coef_min, self.coef, self.coef_max)

    def begin(self) -> ControllerState:
        """Return the state before the first measurement."""
        return ControllerState(self.coef, self.coef)

    def step(self, state: ControllerState, measured: float) -> ControllerState:
        """Set the coefficient for this entropy, then move ``c`` for the next one."""
        _finite(measured)
        coef = state.memory if measured <= self.target else 0.0
        direction = (measured < self.target) - (measured > self.target)
        memory = min(max(state.memory + self.delta * direction, self.coef_min), self.coef_max)
        return ControllerState(coef, memory, state.steps + 1)


CONTROLLERS: Mapping[str, type[Fixed] | type[Band] | type[Lagrangian] | type[EntropyTarget]] = MappingProxyType(
    {"fixed": Fixed, "band": Band, "lagrangian": Lagrangian, "entropy_target": EntropyTarget}
)
"""Every controller by the name it has in a recipe."""


def make(kind: str, **settings: Any) -> Controller:
    """Return the controller called ``kind`` with these settings.

    Raises:
        ValueError: Unknown kind, or settings that do not fit it.
    """
    if kind not in CONTROLLERS:
        raise ValueError(f"unknown controller {kind!r}; known: {', '.join(CONTROLLERS)}")
    try:
        return CONTROLLERS[kind](**settings)
    except TypeError as error:
        raise ValueError(f"controller {kind!r}: {error}") from None


def _next(state: ControllerState, coef: float) -> ControllerState:
    return ControllerState(coef, coef, state.steps + 1)


def _finite(measured: float) -> None:
    if not math.isfinite(measured):
        raise ValueError(f"a controller was given the measurement {measured}; it must be finite")


def _not_negative(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be finite and 0 or more, got {value!r}")


def _ordered(low: float, coef: float, high: float) -> None:
    if not 0 <= low <= coef <= high < math.inf:
        raise ValueError(f"a controller needs 0 <= coef_min <= coef <= coef_max, got {low!r}, {coef!r} and {high!r}")
