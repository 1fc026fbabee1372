"""What every controller is: its settings, what it moves, and its rule, in one class."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from levelhead.section import Section


@dataclass(frozen=True, slots=True)
class ControllerState:
    """Where a controller stands.

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
