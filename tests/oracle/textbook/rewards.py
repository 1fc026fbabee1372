"""Rewards before they become advantages: shaping in its fixed order, and the charge for leaving the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from levelhead.objective.shaping import GroupRelative, Overlong, PerToken, ZScore
from levelhead.recipe.objective import AnyShaper, Shaping
from oracle.textbook.estimators import Matrix, mean
from oracle.textbook.records import Attempt, UnprovedError


@dataclass(slots=True)
class Moments:
    """Rewards seen so far, batch by batch: what a running z-score is taken of.

    Attributes:
        batches: (mean, population variance) of each batch, its tails pulled in.
    """

    batches: list[tuple[float, float]] = field(default_factory=list)

    def now(self, decay: float) -> tuple[float, float]:
        """Return mean and variance of the mixture in which a batch weighs ``decay`` to the power of its age."""
        weights = [decay ** (len(self.batches) - 1 - i) for i in range(len(self.batches))]
        total = sum(weights)
        middle = sum(w * m for w, (m, _) in zip(weights, self.batches, strict=True)) / total
        spread = sum(w * (v + (m - middle) ** 2) for w, (m, v) in zip(weights, self.batches, strict=True)) / total
        return middle, spread


def shaped(
    shaping: Shaping, budget: int, rewards: Matrix, attempts: Sequence[Sequence[Attempt]], moments: Moments
) -> Matrix:
    """Return the rewards of a task's groups after length penalty, z-score, scale and clip, in this order.

    Args:
        shaping: The task's section.
        budget: Completion budget, for a length penalty without a length of its own.
        rewards: Of each rollout of each group.
        attempts: The rollouts.
        moments: Of the batches before; this one is added.
    """
    if shaping.length is not None:
        pairs = zip(rewards, attempts, strict=True)
        rewards = [_penalised(shaping.length, budget, row, [a.length for a in group]) for row, group in pairs]
    if shaping.zscore is not None:
        rewards = _standardised(shaping.zscore, rewards, moments)
    rewards = [[x * shaping.scale for x in row] for row in rewards]
    if shaping.clip is not None:
        low, high = shaping.clip
        rewards = [[min(max(x, low), high) for x in row] for row in rewards]
    return rewards


def _penalised(penalty: AnyShaper, budget: int, row: Sequence[float], lengths: Sequence[int]) -> list[float]:
    if isinstance(penalty, Overlong):  # Yu et al. 2025, DAPO, arXiv:2503.14476, eq. 13
        longest = penalty.max_length or budget
        start = longest - penalty.cache
        shares = [
            min(max((n - start) / penalty.cache, 0.0), 1.0) if penalty.cache else float(n > start) for n in lengths
        ]
        return [x - penalty.coef * share for x, share in zip(row, shares, strict=True)]
    if isinstance(penalty, PerToken):
        return [x - penalty.coef * n / (penalty.max_length or budget) for x, n in zip(row, lengths, strict=True)]
    if isinstance(penalty, GroupRelative):  # Kimi Team 2025, arXiv:2501.12599, length penalty
        short, long = min(lengths), max(lengths)
        if short == long:
            return list(row)
        bonus = [0.5 - (n - short) / (long - short) for n in lengths]
        own = [b if x > penalty.threshold else min(b, 0.0) for x, b in zip(row, bonus, strict=True)]
        return [x + penalty.coef * b for x, b in zip(row, own, strict=True)]
    raise UnprovedError(f"tasks[].shaping.length.kind: {getattr(penalty, 'kind', type(penalty).__name__)}")


def _standardised(settings: ZScore, rewards: Matrix, moments: Moments) -> Matrix:
    ordered = sorted(x for row in rewards for x in row)
    cut = math.floor(settings.tail * len(ordered))
    low, high = ordered[cut], ordered[len(ordered) - 1 - cut]
    pulled = [min(max(x, low), high) for x in ordered]
    moments.batches.append((mean(pulled), mean([(x - mean(pulled)) ** 2 for x in pulled])))
    middle, variance = moments.now(settings.decay)
    spread = math.sqrt(variance) + settings.eps
    scores = [[(x - middle) / spread if spread > 0 else 0.0 for x in row] for row in rewards]
    if settings.limit is None:
        return scores
    return [[min(max(x, -settings.limit), settings.limit) for x in row] for row in scores]


def charged(rewards: Matrix, attempts: Sequence[Sequence[Attempt]], coef: float) -> Matrix:
    """Return the rewards less ``coef`` times the log-ratio to the reference of all tokens (Ziegler et al. 2019)."""
    pairs = zip(rewards, attempts, strict=True)
    return [[x - coef * float(a.drift.sum()) for x, a in zip(row, group, strict=True)] for row, group in pairs]
