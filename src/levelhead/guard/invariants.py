"""What holds at every update of a sound trainer, whatever the task: where it does not, there is a bug and no drift.

The detectors weigh how a run goes; nothing here is weighed.  Before the first update of a batch trainer and sampler
hold the same weights and give a sampled token the same probability, up to rounding.  A policy that has moved is no
longer its frozen reference.  Advantages go with rewards, and an update made from them raises, on average, what was
rewarded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from levelhead import metrics as metric
from levelhead.diagnosis.stats import mean
from levelhead.guard import messages
from levelhead.message import Phrase

BEYOND = metric.BEYOND_ROUNDING
MOVED = 1e-6
"""KL, in nats a token over all updates, from which float32 tells a policy from its reference: below it, the k3 estimate
is lost in rounding."""
AGREEMENTS = {metric.AGREEMENT: messages.ADVANTAGES_AGAINST, metric.GUARD_ALIGNMENT: messages.UPDATES_AGAINST}
"""Cosines that are above 0 in expectation, and what it means where they are below, the cause before its effect."""
READINGS = 8
"""Cosines before their mean is judged."""
REMEMBERED = 64
"""Cosines over which it is."""
UNEXPLAINED = 0.2
"""Share of the gradient that no term explains, beyond what rounding does."""
NO_CHANCE = 30.0
"""Nats of evidence in one step: by chance once in 10^13 steps at most."""
CERTAIN = 4.0
"""Standard errors that it must lie below 0."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that cannot be in a sound trainer.

    Attributes:
        code: What to call it.
        text: In one sentence.
        evidence: Its numbers.
    """

    code: str
    text: Phrase
    evidence: Mapping[str, float]


class Invariants:
    """Follows what must hold from update to update."""

    def __init__(self) -> None:
        self._moved = 0.0
        self._cosines: dict[str, list[float]] = {name: [] for name in AGREEMENTS}

    def before(self, values: Mapping[str, float]) -> list[Violation]:
        """Judge the numbers of an update that is about to be made."""
        looks = (_unexplained(values), _engines(values), self._reference(values))
        return [violation for violation in looks if violation]

    def after(self, values: Mapping[str, float]) -> list[Violation]:
        """Judge what the updates of a step have done to the policy."""
        if values.get(metric.GUARD_SCALE, 0.0) > 0:
            self._moved += values.get(metric.GUARD_KL, 0.0)
        for name, cosines in self._cosines.items():
            if name in values:
                cosines.append(values[name])
                del cosines[:-REMEMBERED]
        against = [violation for name in AGREEMENTS if (violation := _against(name, self._cosines[name]))][:1]
        return [*against, *(violation for violation in [_repeats(values)] if violation)]

    def restart(self) -> None:
        """Take weights from before, which may be the reference's own."""
        self._moved = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, as JSON."""
        return {"moved": self._moved, "cosines": self._cosines}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        self._moved = float(state["moved"])
        self._cosines = {name: [float(v) for v in state["cosines"][name]] for name in AGREEMENTS}

    def _reference(self, values: Mapping[str, float]) -> Violation | None:
        if values.get(metric.KL) != 0 or self._moved < MOVED:
            return None
        return Violation("reference-not-frozen", messages.FROZEN_MOVES(), {"kl": 0.0, "moved": self._moved})


def _against(name: str, cosines: Sequence[float]) -> Violation | None:
    """Whether what should follow the rewards runs against them, beyond chance."""
    n = len(cosines)
    if n < READINGS:
        return None
    average = mean(cosines)
    error = math.sqrt(mean([(v - average) ** 2 for v in cosines]) / (n - 1))
    if average >= -CERTAIN * error:
        return None
    text = AGREEMENTS[name](n=n, mean=average)
    return Violation("update-against-reward", text, {name: average, "error": error, "readings": float(n)})


def _repeats(values: Mapping[str, float]) -> Violation | None:
    """Whether rollouts repeat each other more often, or less, than their probabilities allow."""
    evidence = values.get(metric.REPEATS_EVIDENCE, 0.0)
    if evidence < NO_CHANCE:
        return None
    share, expected = values.get(metric.REPEATS, 0.0), values.get(metric.REPEATS_EXPECTED, 0.0)
    text = messages.REPEATS(share=share, expected=expected, digits=evidence / math.log(10))
    numbers = {metric.REPEATS: share, metric.REPEATS_EXPECTED: expected, "evidence": evidence}
    return Violation("repeated-rollouts", text, numbers)


def _unexplained(values: Mapping[str, float]) -> Violation | None:
    """Whether a gradient holds more than the objective's terms."""
    share = values.get(metric.AUDIT_UNEXPLAINED, 0.0)
    if share <= UNEXPLAINED:
        return None
    return Violation("gradient-unexplained", messages.UNEXPLAINED(share=share), {metric.AUDIT_UNEXPLAINED: share})


def _engines(values: Mapping[str, float]) -> Violation | None:
    """Whether sampler and trainer, at the same weights, differ by more than rounding."""
    beyond = values.get(BEYOND, 0.0)
    if beyond <= 0:
        return None
    return Violation("logprob-mismatch", messages.ENGINES_DIFFER(nats=beyond), {BEYOND: beyond})
