"""The knobs of the surrogates, checked once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """Knobs of all surrogates; each reads the ones it knows.

    Attributes:
        clip_low: Lower clip range of the ratio.
        clip_high: Upper clip range of the ratio.
        dual_clip: Bound on the ratio where the advantage is negative.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None

    def __post_init__(self) -> None:
        if not (self.clip_low >= 0 and self.clip_high >= 0):
            raise ValueError(f"clip ranges must not be negative, got {self.clip_low} and {self.clip_high}")
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ValueError(f"dual_clip must be above 1, got {self.dual_clip}")
