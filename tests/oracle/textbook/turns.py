"""Credit by turn, written out in plain loops over rollouts and turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oracle.textbook.records import Attempt, Settings

Rows = list[list[float]]
"""One number a turn, rollout by rollout."""


def earned(group: Sequence[Attempt]) -> Rows:
    """What each turn earned: what was paid for it, and at the last what that leaves of the total."""
    rows = []
    for attempt in group:
        row = list(attempt.paid) or [0.0] * len(attempt.lengths)
        rows.append([*row[:-1], row[-1] + attempt.reward - sum(row)])
    return rows


def to_go(row: Sequence[float], discount: float) -> list[float]:
    """Discounted sums of each entry and all after it."""
    return [sum(discount ** (m - n) * row[m] for m in range(n, len(row))) for n in range(len(row))]


def _values(settings: Any, group: Sequence[Attempt], returns: Rows) -> Rows:
    """What other rollouts returned at comparable turns, at each turn."""
    values = []
    for k, attempt in enumerate(group):
        row = []
        for n in range(len(attempt.lengths)):
            others = [j for j in range(len(group)) if j != k]
            if settings.baseline == "state":
                peers = [
                    returns[j][m]
                    for j in others
                    for m in range(len(returns[j]))
                    if group[j].states[m] == attempt.states[n]
                ]
            elif settings.baseline == "turn":
                peers = [returns[j][n] for j in others if n < len(returns[j])]
            else:
                peers = []
            peers = peers or [returns[j][n] if n < len(returns[j]) else 0.0 for j in others]
            row.append(sum(peers) / len(peers))
        values.append(row)
    return values


def return_to_go(settings: Any, group: Sequence[Attempt]) -> Rows:
    """Williams 1992; Kool et al. 2019: the return from a turn on, less that of others."""
    returns = [to_go(row, settings.discount) for row in earned(group)]
    values = _values(settings, group, returns)
    return [[a - b for a, b in zip(*rows, strict=True)] for rows in zip(returns, values, strict=True)]


def loo_gae(settings: Any, group: Sequence[Attempt]) -> Rows:
    """Schulman et al. 2016, arXiv:1506.02438, eq. 16, with the values of others."""
    rewards = earned(group)
    values = _values(settings, group, [to_go(row, settings.discount) for row in rewards])
    made = []
    for row, own in zip(rewards, values, strict=True):
        after = [*own[1:], 0.0]
        deltas = [r + settings.discount * v1 - v0 for r, v0, v1 in zip(row, own, after, strict=True)]
        made.append(to_go(deltas, settings.discount * settings.trace))
    return made


def _standard(row: Sequence[float], settings: Any) -> list[float]:
    if max(row) - min(row) < 1e-12:
        return [0.0] * len(row)
    middle = sum(row) / len(row)
    spread = (sum((x - middle) ** 2 for x in row) / (len(row) - settings.ddof)) ** 0.5
    return [(x - middle) / (spread + settings.eps) for x in row]


def mt_grpo(settings: Any, group: Sequence[Attempt]) -> Rows:
    """Zeng et al. 2025, arXiv:2505.11821: the outcome's advantage, and those of turns from here on."""
    paid = [list(a.paid) or [0.0] * len(a.lengths) for a in group]
    outcome = _standard([a.reward - sum(row) for a, row in zip(group, paid, strict=True)], settings)
    by_turn = [[0.0] * len(row) for row in paid]
    for n in range(max(map(len, paid))):
        members = [k for k, row in enumerate(paid) if n < len(row)]
        for k, value in zip(members, _standard([paid[k][n] for k in members], settings), strict=True):
            by_turn[k][n] = value
    return [
        [whole + settings.turn_weight * x for x in to_go(row, settings.discount)]
        for whole, row in zip(outcome, by_turn, strict=True)
    ]


def gigpo(settings: Any, group: Sequence[Attempt]) -> Rows:
    """Feng et al. 2025, arXiv:2505.10978, eq. 3, 6 and 8: episodes, and turns that share an anchor state."""
    episode = _standard([a.reward for a in group], settings)
    returns = [to_go(row, settings.discount) for row in earned(group)]
    made = [[whole] * len(row) for whole, row in zip(episode, returns, strict=True)]
    for state in {state for a in group for state in a.states}:
        where = [(k, n) for k, a in enumerate(group) for n, own in enumerate(a.states) if own == state]
        if len(where) > 1:
            standard = _standard([returns[k][n] for k, n in where], settings)
            for (k, n), value in zip(where, standard, strict=True):
                made[k][n] += settings.step_weight * value
    return made


TURNWISE: Mapping[str, Callable[[Any, Sequence[Attempt]], Rows]] = {
    "return_to_go": return_to_go,
    "loo_gae": loo_gae,
    "mt_grpo": mt_grpo,
    "gigpo": gigpo,
}
"""Estimators with an advantage for each turn of a rollout."""


def turn_share(settings: Settings, turns: int) -> float:
    """What a turn weighs in sums over an episode: the theorem's 1, or its share of the episode's mean."""
    return 1.0 if settings.grpo.loss.turns == "sum" else 1.0 / turns
