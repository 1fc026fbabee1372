"""``guard``: what watches every update while training, and how far it may go."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from levelhead.section import Section


class Guard(Section):
    """The watch over a run.  ``protect`` acts, ``observe`` only says what it sees, ``off`` is not there at all."""

    policy: Literal["off", "observe", "protect"] = "protect"
    """Whether it acts, watches, or is absent."""

    @field_validator("policy", mode="before")
    @classmethod
    def _words_of_yaml(cls, value: Any) -> Any:
        """YAML reads ``off`` and ``on`` as truth values."""
        return {False: "off", True: "protect"}.get(value, value) if isinstance(value, bool) else value

    max_kl: float = Field(0.05, gt=0)
    """Farthest that one optimizer step may move the policy, in nats a token; a longer one is shortened."""
    max_batch_kl: float | None = Field(None, gt=0)
    """Farthest that all steps of one batch may move it together; twice ``max_kl`` unless given."""
    probe: int = Field(0, ge=0)
    """Sequences of a batch on which that is measured; 0 takes a 32nd of them, at least 4 and at most 8."""
    max_spike: float = Field(100.0, gt=1)
    """An update whose gradient norm is this many times the run's median is skipped."""
    drop: float = Field(0.4, gt=0, lt=1)
    """Share of the best level of reward or validity whose loss, beyond chance, counts as a collapse."""
    window: int = Field(8, ge=4)
    """Steps that a level is the mean of."""
    max_rollbacks: int = Field(3, ge=0)
    """Returns to the last good weights; a collapse after them stops the run."""
    rollback_rate: float = Field(0.5, gt=0, le=1)
    """Factor of the learning rate at each return."""
    min_rate: float = Field(0.05, gt=0, le=1)
    """Lowest factor that the learning rate is taken down to in all."""
    max_entropy_bonus: float = Field(0.01, ge=0, le=1e3)
    """Largest entropy coefficient that may be added while the entropy collapses."""
    max_kl_factor: float = Field(8.0, ge=1, le=1e6)
    """Largest factor of the KL coefficients while the KL blows up."""
    min_clip: float = Field(0.5, gt=0, le=1)
    """Lowest factor of the clip range while later updates of a batch overshoot."""
    max_temperature: float = Field(1.3, ge=1, le=100)
    """Largest factor of the sampling temperature while all groups are alike."""
    max_redraws: int = Field(2, ge=0)
    """Rounds in which groups without contrast may give way to others, while most have none."""
    patience: int = Field(60, ge=4)
    """Steps without any gradient, after which the run stops."""

    @property
    def batch_kl(self) -> float:
        """Bound on what a batch's steps do together, in nats a token."""
        return 2 * self.max_kl if self.max_batch_kl is None else self.max_batch_kl
