"""From log-odds to ranked findings, as ``levelhead.diagnosis.ranking`` does it, for any set of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from factorylib.evidence import Features
from factorylib.fit import HAND, Model
from levelhead.diagnosis import ranking, stats
from levelhead.diagnosis.detectors import Candidate
from levelhead.diagnosis.detectors.base import PRIOR, Evidence
from levelhead.doctor.report import NOTE_BELOW


@dataclass(frozen=True, slots=True)
class Doctor:
    """Weights of every finding, and how log-odds become confidences.

    Attributes:
        models: By finding; the doctor's own for all others.
        slope: Of the log-odds.
        shift: Added to them.
    """

    models: Mapping[str, Model]
    slope: float = 1.0
    shift: float = 0.0

    def log_odds(self, features: Features) -> dict[str, float]:
        """Calibrated log-odds by finding; the models' own intercepts hold the doctor's shift already."""
        return {
            h.code: self.slope * self.models.get(h.code, HAND).log_odds(h, features.context) + self.shift
            for h in features.heard
        }

    def findings(self, features: Features) -> list[tuple[str, float]]:
        """Warnings and critical findings, best explanation first, with their confidences."""
        odds = self.log_odds(features)
        candidates = {
            h.code: Candidate(h.code, [Evidence(odds[h.code] - ranking.SHIFT - PRIOR, "all", {})], h.first_step)
            for h in features.heard
        }
        belief = {code: stats.sigmoid(odds[code]) for code in candidates}
        order = sorted(candidates, key=lambda code: (-ranking._rank(code, candidates, belief), code))
        heard = {h.code: h for h in features.heard}
        grave = [
            (code, belief[code] * heard[code].trust)
            for code in order
            if heard[code].severity != "info"
            and candidates[code].log_odds >= ranking.UNHEALTHY_AT
            and belief[code] * heard[code].trust >= min(NOTE_BELOW, belief[code])
        ]
        return grave[:1] + [(code, min(confidence, ranking.MOST)) for code, confidence in grave[1:]]
