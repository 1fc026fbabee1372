"""``advantage``: how rewards of a group become advantages."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from levelhead.recipe.base import Section

AdvantageKind = Literal[
    "grpo",
    "dr_grpo",
    "rloo",
    "batch",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "gdpo",
    "opo",
    "gtpo",
    "workflow_aware",
    "pass_at_k",
    "pkpo",
]
"""Names of the advantage estimators."""

_OPTIONS: dict[str, frozenset[str]] = {
    "gdpo": frozenset({"weights", "batch_norm", "statistics"}),
    "reinforce_pp": frozenset({"statistics"}),
    "reinforce_pp_baseline": frozenset({"statistics"}),
    "gtpo": frozenset({"outcome_weight", "entropy_weight", "threshold", "apart"}),
    "workflow_aware": frozenset({"mix", "feature_weights"}),
    "pass_at_k": frozenset({"k"}),
    "pkpo": frozenset({"k"}),
}


class Advantage(Section):
    """How rewards of a group become advantages; names are those of ``objective.advantages``.

    Keys that default to null are settings of single estimators, whose own default then holds (docs/objective.md).
    """

    kind: AdvantageKind = "grpo"
    """Estimator: ``grpo``, ``dr_grpo``, ``rloo``, ... (see docs/objective.md)."""
    ddof: int = Field(1, ge=0, le=1)
    """Degrees of freedom of the standard deviation: 1 sample (TRL), 0 population."""
    eps: float = Field(1e-4, ge=0, le=1e3)
    """Added to the standard deviation."""
    clip: float | None = Field(None, gt=0, le=1e6)
    """Bound on the absolute advantage."""
    statistics: Literal["rollouts", "tokens"] | None = None
    """``reinforce_pp``, ``reinforce_pp_baseline``, ``gdpo``: batch statistics over rollouts, or over tokens (verl)."""
    weights: dict[str, float] | None = None
    """``gdpo``: weight of each named reward; 1 where none is named."""
    batch_norm: bool | None = None
    """``gdpo``: whether to divide by the batch deviation."""
    k: int | None = Field(None, ge=1)
    """``pass_at_k``, ``pkpo``: attempts of which the best counts."""
    mix: float | None = Field(None, ge=0, le=1e6)
    """``workflow_aware``: size of a structural advantage relative to one from rewards."""
    feature_weights: dict[str, float] | None = None
    """``workflow_aware``: which structural features count, and how much."""
    outcome_weight: float | None = None
    """``gtpo``: weight of a token's outcome."""
    entropy_weight: float | None = None
    """``gtpo``: weight of a token's share of the entropy."""
    threshold: float | None = None
    """``gtpo``: a reward above it is solved; each group's mean unless given."""
    apart: bool | None = None
    """``gtpo``: standardise solved and failed tokens apart, as the paper does."""

    @model_validator(mode="after")
    def _options_belong_to_the_kind(self) -> Self:
        used = _OPTIONS.get(self.kind, frozenset())
        for name in frozenset().union(*_OPTIONS.values()) - used:
            if getattr(self, name) is not None:
                owners = ", ".join(kind for kind, options in _OPTIONS.items() if name in options)
                raise ValueError(f"{name} is no setting of {self.kind!r}, but of {owners}; remove it or change kind")
        return self

    def options(self) -> dict[str, Any]:
        """Return the settings of this estimator alone that were given, as keywords of ``advantages.compute``.

        ``statistics`` is not among them: where it is ``tokens``, the caller passes ``lengths_gk``.
        """
        names = _OPTIONS.get(self.kind, frozenset()) - {"statistics"}
        return {name: getattr(self, name) for name in sorted(names) if getattr(self, name) is not None}
