"""The knobs of the surrogates, checked once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

DEFAULT_CLIP = {
    "ppo_clip": (0.2, 0.2),
    "gspo": (3e-4, 4e-4),
    "gspo_token": (3e-4, 4e-4),
    "cispo": (1.0, 4.0),
    "gmpo": (0.4, 0.4),
    "clip_cov": (0.2, 0.2),
}
"""Low and high clip range where none is given, from each method's paper (CISPO's cap of 5 from Khatri et al. 2025)."""


def default_clip(name: str, low: float | None, high: float | None) -> tuple[float, float]:
    """Return the clip range of a method, its own default where ``None`` is given."""
    default_low, default_high = DEFAULT_CLIP.get(name, (0.0, 0.0))
    return default_low if low is None else low, default_high if high is None else high


@dataclass(frozen=True, slots=True)
class Options:
    """Knobs of all surrogates; each reads the ones it knows.

    Attributes:
        clip_low: Lower clip range.
        clip_high: Upper clip range.
        dual_clip: Bound on the ratio where the advantage is negative.
        tau_pos: SAPO's temperature where the advantage is positive.
        tau_neg: SAPO's temperature elsewhere.
        cov_fraction: Share of the tokens that Clip-Cov detaches or KL-Cov penalises; at least one token.
        cov_low: Clip-Cov draws among tokens whose covariance is above this,
        cov_high: and below this.
        cov_kl: KL-Cov's coefficient.
        generator: Clip-Cov's source of randomness.
    """

    clip_low: float
    clip_high: float
    dual_clip: float | None = None
    tau_pos: float = 1.0
    tau_neg: float = 1.05
    cov_fraction: float = 2e-4
    cov_low: float = 1.0
    cov_high: float = 5.0
    cov_kl: float = 1.0
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if not (self.clip_low >= 0 and self.clip_high >= 0):
            raise ValueError(f"clip ranges must not be negative, got {self.clip_low} and {self.clip_high}")
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ValueError(f"dual_clip must be above 1, got {self.dual_clip}")
        if not (self.tau_pos > 0 and self.tau_neg > 0):
            raise ValueError(f"tau_pos and tau_neg must be positive, got {self.tau_pos} and {self.tau_neg}")
        if not 0 < self.cov_fraction <= 1:
            raise ValueError(f"cov_fraction must be in (0, 1], got {self.cov_fraction}")
        if not self.cov_low < self.cov_high:
            raise ValueError(f"cov_low must be below cov_high, got {self.cov_low} and {self.cov_high}")
        if not self.cov_kl >= 0:
            raise ValueError(f"cov_kl must not be negative, got {self.cov_kl}")
