"""``curriculum``: which problems the reinforcement stage draws."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from levelhead.section import Section


class ByWeight(Section):
    """Every task by its weight, every problem as often as the others."""

    kind: Literal["weights"]
    """``weights``."""


class Learnability(Section):
    """Problems in proportion to p(1 - p), p being the policy's recent success.

    What is solved or hopeless fades, and is tried again now and then.
    """

    kind: Literal["learnability"]
    """``learnability``."""
    floor: float = Field(0.1, gt=0, le=1)
    """Least weight of a task or problem, where one that succeeds half of the time has 1."""
    half_life: float = Field(20.0, gt=0)
    """Steps after which an outcome counts half as much."""


def _named(value: Any) -> Any:
    """Take a bare name for a section with nothing else in it."""
    return {"kind": value} if isinstance(value, str) else value


Curriculum = Annotated[
    Annotated[ByWeight | Learnability, Field(discriminator="kind")],
    BeforeValidator(_named, json_schema_input_type=Literal["weights", "learnability"] | ByWeight | Learnability),
]
