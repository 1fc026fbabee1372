"""From rewards to advantages, each estimator as its paper has it, one group and one rollout at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from levelhead.recipe.objective import AdvantageSection
from oracle.textbook.records import Attempt, Floats, UnprovedError
from oracle.textbook.turns import TURNWISE

Matrix = list[list[float]]
"""A number for each rollout of each group."""

WORKFLOW_FEATURES = {
    "diversity": 0.35,
    "improvement": 0.25,
    "execution_success": 0.20,
    "efficiency": 0.10,
    "operator_variety": 0.10,
}
"""Weights of the structural features in AFlow's WA-GRPO."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages of some groups of one task.

    Attributes:
        values: Of each rollout of each group.
        tokens: Of each token of each rollout; ``None`` where all tokens of a rollout have the same.
    """

    values: Matrix
    tokens: list[list[Floats]] | None = None


def estimate(settings: AdvantageSection, rewards: Matrix, attempts: Sequence[Sequence[Attempt]]) -> Advantages:
    """Return the advantages of the groups of a task.

    Args:
        settings: The ``grpo.advantage`` section.
        rewards: Of each rollout of each group, after shaping.
        attempts: The rollouts themselves.

    Raises:
        UnprovedError: No paper's formula is written down here for this estimator.
    """
    if settings.kind == "gtpo":
        tokens = [_gtpo(settings, row, group) for row, group in zip(rewards, attempts, strict=True)]
        tokens = [[_bounded(t, settings.clip) for t in group] for group in tokens]
        return Advantages([[float(t.mean()) for t in group] for group in tokens], tokens)
    if settings.kind in TURNWISE:
        by_turn = [
            TURNWISE[settings.kind](settings, _paid(row, group)) for row, group in zip(rewards, attempts, strict=True)
        ]
        bounded = [[_bounded(np.array(row), settings.clip) for row in group] for group in by_turn]
        tokens = [
            [np.repeat(row, a.lengths) for row, a in zip(rows, group, strict=True)]
            for rows, group in zip(bounded, attempts, strict=True)
        ]
        return Advantages(
            [[float(_bounded(np.array(row).mean(), settings.clip)) for row in g] for g in by_turn], tokens
        )
    if settings.kind not in ESTIMATORS:
        raise UnprovedError(f"grpo.advantage.kind: {settings.kind}")
    values = ESTIMATORS[settings.kind](settings, rewards, attempts)
    return Advantages([_bounded(np.array(row), settings.clip).tolist() for row in values])


def _paid(row: Sequence[float], group: Sequence[Attempt]) -> list[Attempt]:
    return [replace(attempt, reward=reward) for attempt, reward in zip(group, row, strict=True)]


def _bounded(values: Floats, clip: float | None) -> Floats:
    return values if clip is None else np.minimum(np.maximum(values, -clip), clip)


def mean(row: Sequence[float]) -> float:
    """Return the arithmetic mean."""
    return sum(row) / len(row)


def deviation(row: Sequence[float], ddof: int) -> float:
    """Return the standard deviation with ``n - ddof`` in the denominator."""
    middle = mean(row)
    return float(np.sqrt(sum((x - middle) ** 2 for x in row) / (len(row) - ddof)))


def _flat(row: Sequence[float]) -> bool:
    return max(row) == min(row)


def _standard(row: Sequence[float], ddof: int, eps: float) -> list[float]:
    """``(r - mean) / (std + eps)``, 0 where all are equal."""
    if _flat(row):
        return [0.0] * len(row)
    return [(x - mean(row)) / (deviation(row, ddof) + eps) for x in row]


def _centred(row: Sequence[float]) -> list[float]:
    return [0.0] * len(row) if _flat(row) else [x - mean(row) for x in row]


def _grpo(settings: AdvantageSection, rewards: Matrix, _attempts: Sequence[Sequence[Attempt]]) -> Matrix:
    """Shao et al. 2024, arXiv:2402.03300, section 4.1.2."""
    return [_standard(row, settings.ddof, settings.eps) for row in rewards]


def _dr_grpo(_settings: AdvantageSection, rewards: Matrix, _attempts: Sequence[Sequence[Attempt]]) -> Matrix:
    """Liu et al. 2025, arXiv:2503.20783: no division by the deviation."""
    return [_centred(row) for row in rewards]


def _rloo(_settings: AdvantageSection, rewards: Matrix, _attempts: Sequence[Sequence[Attempt]]) -> Matrix:
    """Ahmadian et al. 2024, arXiv:2402.14740: less the mean of the others."""
    made = []
    for row in rewards:
        others = [[x for j, x in enumerate(row) if j != i] for i in range(len(row))]
        made.append([0.0] * len(row) if _flat(row) else [x - mean(rest) for x, rest in zip(row, others, strict=True)])
    return made


def _opo(_settings: AdvantageSection, rewards: Matrix, attempts: Sequence[Sequence[Attempt]]) -> Matrix:
    """Hao et al. 2025, arXiv:2505.23585: less the mean weighted by length."""
    made = []
    for row, group in zip(rewards, attempts, strict=True):
        baseline = sum(a.length * x for a, x in zip(group, row, strict=True)) / sum(a.length for a in group)
        made.append([0.0] * len(row) if _flat(row) else [x - baseline for x in row])
    return made


def _batch(settings: AdvantageSection, rewards: Matrix, _attempts: Sequence[Sequence[Attempt]]) -> Matrix:
    """Liu et al. 2025, arXiv:2508.08221: mean of the group, deviation of all rewards."""
    spread = deviation([x for row in rewards for x in row], settings.ddof)
    return _divided([_centred(row) for row in rewards], spread, settings.eps)


def _divided(values: Matrix, spread: float, eps: float) -> Matrix:
    return [[x / (spread + eps) if spread > 0 else x for x in row] for row in values]


def _batch_moments(
    settings: AdvantageSection, values: Matrix, attempts: Sequence[Sequence[Attempt]]
) -> tuple[float, float]:
    """Mean and deviation over all rollouts, or over all tokens where ``statistics: tokens``."""
    many = settings.statistics == "tokens"
    flat = [
        x
        for row, g in zip(values, attempts, strict=True)
        for x, a in zip(row, g, strict=True)
        for _ in range(a.length if many else 1)
    ]
    return mean(flat), deviation(flat, settings.ddof)


def _reinforce_pp(settings: AdvantageSection, rewards: Matrix, attempts: Sequence[Sequence[Attempt]]) -> Matrix:
    """Hu et al. 2025, arXiv:2501.03262: whitened over the batch."""
    middle, spread = _batch_moments(settings, rewards, attempts)
    return _divided([[x - middle for x in row] for row in rewards], spread, settings.eps)


def _reinforce_pp_baseline(
    settings: AdvantageSection, rewards: Matrix, attempts: Sequence[Sequence[Attempt]]
) -> Matrix:
    """Hu et al. 2025, arXiv:2501.03262: mean of the group, then the deviation of what is left over the batch."""
    centred = [_centred(row) for row in rewards]
    return _divided(centred, _batch_moments(settings, centred, attempts)[1], settings.eps)


def _gdpo(settings: AdvantageSection, rewards: Matrix, attempts: Sequence[Sequence[Attempt]]) -> Matrix:
    """Liu et al. 2026, arXiv:2601.05242: each named reward standardised by itself, then weighted, summed, divided."""
    names = sorted({name for group in attempts for a in group for name in a.parts})
    total = [[0.0] * len(row) for row in rewards]
    for name in names:
        weight = (settings.weights or {}).get(name, 1.0)
        for g, group in enumerate(attempts):
            own = [k for k, a in enumerate(group) if name in a.parts]
            if len(own) <= max(settings.ddof, 1):
                continue
            standard = _standard([group[k].parts[name] for k in own], settings.ddof, settings.eps)
            for k, value in zip(own, standard, strict=True):
                total[g][k] += weight * value
    total = [[0.0] * len(row) if max(row) - min(row) < 1e-12 else row for row in total]
    if settings.batch_norm is False:
        return total
    return _divided(total, _batch_moments(settings, total, attempts)[1], settings.eps)


def _workflow_aware(settings: AdvantageSection, rewards: Matrix, attempts: Sequence[Sequence[Attempt]]) -> Matrix:
    """GRPO; in groups of equal rewards ``mix`` times GRPO on the weighted structural features."""
    weights = WORKFLOW_FEATURES if settings.feature_weights is None else settings.feature_weights
    mix = 0.12 if settings.mix is None else settings.mix
    made = []
    for row, group in zip(rewards, attempts, strict=True):
        structure = [sum(weight * a.features[name] for name, weight in weights.items()) for a in group]
        by_structure = _standard(structure, settings.ddof, settings.eps)
        made.append([mix * x for x in by_structure] if _flat(row) else _standard(row, settings.ddof, settings.eps))
    return made


def _pass_at_k(settings: AdvantageSection, rewards: Matrix, _attempts: Sequence[Sequence[Attempt]]) -> Matrix:
    """Chen et al. 2025, arXiv:2508.10751: every k-subset scores its best reward; a rollout gets its subsets' mean."""
    size = settings.k or 4
    made = []
    for row in rewards:
        subsets = list(combinations(range(len(row)), size))
        best = [max(row[i] for i in subset) for subset in subsets]
        own = [mean([b for b, subset in zip(best, subsets, strict=True) if i in subset]) for i in range(len(row))]
        spread = deviation(best, 0) + settings.eps
        made.append([0.0] * len(row) if _flat(best) else [(x - mean(best)) / spread for x in own])
    return made


def _pkpo(settings: AdvantageSection, rewards: Matrix, _attempts: Sequence[Sequence[Attempt]]) -> Matrix:
    """Walder and Karkhanis 2025, arXiv:2505.15201, eq. 33: what a rollout adds to the best of k - 1 others."""
    size = settings.k or 4
    made = []
    for row in rewards:
        gains = []
        for i, x in enumerate(row):
            others = list(combinations([y for j, y in enumerate(row) if j != i], size - 1))
            gains.append(mean([max(x, *rest) - max(rest) for rest in others]))
        made.append(gains)
    return made


ESTIMATORS: Mapping[str, Callable[[AdvantageSection, Matrix, Sequence[Sequence[Attempt]]], Matrix]] = {
    "grpo": _grpo,
    "dr_grpo": _dr_grpo,
    "rloo": _rloo,
    "opo": _opo,
    "batch": _batch,
    "reinforce_pp": _reinforce_pp,
    "reinforce_pp_baseline": _reinforce_pp_baseline,
    "gdpo": _gdpo,
    "workflow_aware": _workflow_aware,
    "pass_at_k": _pass_at_k,
    "pkpo": _pkpo,
}
"""Estimators with one advantage a rollout."""


def _gtpo(settings: AdvantageSection, row: Sequence[float], group: Sequence[Attempt]) -> list[Floats]:
    """Tan et al. 2025, arXiv:2508.04349, eq. 3, 5 and 6, with solved and failed tokens standardised together."""
    base = 1.0 if settings.outcome_weight is None else settings.outcome_weight
    extra = 0.1 if settings.entropy_weight is None else settings.entropy_weight
    level = mean(row) + 1e-12 * max(abs(x) for x in row) if settings.threshold is None else settings.threshold
    solved = [x > level for x in row]
    entropies = [np.maximum(np.maximum(a.entropies, 0.0), 1e-6) for a in group]
    if all(solved) or not any(solved):
        return [np.zeros(len(h)) for h in entropies]
    weights = [h if won else 1 / h for h, won in zip(entropies, solved, strict=True)]
    scores = [np.zeros(len(h)) for h in entropies]
    for i, won in enumerate(solved):
        for t in range(len(entropies[i])):
            peers = [weights[j][t] for j in range(len(group)) if solved[j] == won and t < len(weights[j])]
            share = base + extra * len(peers) * weights[i][t] / sum(peers)
            scores[i][t] = share if won else -share
    sides = [[i for i, won in enumerate(solved) if won], [i for i, won in enumerate(solved) if not won]]
    for members in sides if settings.apart else [list(range(len(group)))]:
        flat = [float(x) for i in members for x in scores[i]]
        middle, spread = mean(flat), deviation(flat, settings.ddof if len(flat) > settings.ddof else 0)
        for i in members:
            steady = spread < 1e-12 * max(abs(x) for x in flat)
            scores[i] = np.zeros(len(scores[i])) if steady else (scores[i] - middle) / (spread + settings.eps)
    return scores
