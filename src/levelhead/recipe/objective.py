"""What is maximised: the advantage estimator, the policy loss, the leash, the bonus, and how tasks are merged."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from levelhead.recipe.base import Section


class Advantage(Section):
    """How rewards of a group become advantages; names are those of ``objective.advantages``."""

    kind: str = "grpo"
    """Estimator: ``grpo``, ``dr_grpo``, ``rloo``, ... (see docs/objective.md)."""
    ddof: int = Field(1, ge=0, le=1)
    """Degrees of freedom of the standard deviation: 1 sample (TRL), 0 population."""
    eps: float = Field(1e-4, ge=0)
    """Added to the standard deviation."""
    clip: float | None = Field(None, gt=0)
    """Bound on the absolute advantage."""


class Loss(Section):
    """The policy loss; names are those of ``objective.losses``."""

    kind: str = "ppo_clip"
    """Surrogate: ``ppo_clip``, ``gspo``, ``cispo``, ... (see docs/objective.md)."""
    clip_low: float = Field(0.2, ge=0)
    """The ratio is clipped below ``1 - clip_low``."""
    clip_high: float = Field(0.2, ge=0)
    """The ratio is clipped above ``1 + clip_high``."""
    dual_clip: float | None = Field(None, gt=1)
    """Bound on the ratio where the advantage is negative (Ye et al. 2020)."""
    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = "token_mean"
    """Mean over all tokens (DAPO), over sequences of token means (GRPO), or over a fixed length (Dr. GRPO)."""


class Kl(Section):
    """The leash to the reference policy."""

    coef: float = Field(0.0, ge=0)
    """Coefficient for tasks that set none of their own; 0 everywhere means that no reference is kept."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL (Schulman 2020)."""


class Entropy(Section):
    """The entropy bonus."""

    coef: float = Field(0.0, ge=0)
    """Coefficient of the mean token entropy, which is maximised."""


class Merge(Section):
    """How the reward gradients of the tasks become one; names are those of ``objective.surgery``."""

    kind: str = "sum"
    """Aggregator: ``sum``, ``mean``, ``cagrad``, ``pcgrad``, ``upgrad``, ``mgda``, ``aligned_mtl``."""
    c: float = Field(0.4, ge=0, lt=1)
    """CAGrad's radius: 0 is the mean."""
