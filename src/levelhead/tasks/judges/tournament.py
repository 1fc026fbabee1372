"""From comparisons of two answers to a grade of each: who meets whom, and the share of them that it beats.

The grade is the win rate with ties half.  Where all meet all it orders answers as the maximum-likelihood strengths of
Bradley and Terry do (Ford 1957, "Solution of a ranking problem from binary comparisons"; Huber 1963, "Pairwise
comparison and ranking: optimum properties of the row sum procedure"), needs no fit, and is bounded where an answer wins
or loses everything, in which case those strengths are infinite.  Where opponents are drawn by lot its mean is the win
rate against all, whatever model the outcomes follow (Shah and Wainwright 2018, "Simple, robust and optimal ranking from
pairwise comparisons", JMLR 18:1-38).
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import fmean

from levelhead.rollout.draws import generator

NEUTRAL = 0.5
"""Grade of an answer that ties with all others, and of one that has none to be compared with."""


def schedule(texts: Sequence[str], opponents: int | None, name: str) -> list[tuple[int, int]]:
    """Return which answers of a group are compared: pairs (i, j) with i < j, each once.

    With ``opponents`` all of them meet at least so many others (one more where the number of answers and of opponents
    are both odd): a lot seats them at a round table, and each meets the nearest ones on both sides.  So each pair is
    as likely as any other, and the lot depends on the answers alone: a resumed run draws the same.

    Args:
        texts: The answers of the group.
        opponents: How many others each meets; all unless given.
        name: Of the prompt, for the lot.
    """
    n = len(texts)
    if opponents is None or opponents >= n - 1:
        return list(itertools.combinations(range(n), 2))
    seats = generator(0, "judge-pairs", name, *(ascii(text) for text in texts)).permutation(n)
    places = [(int(seats[i]), int(seats[(i + step) % n])) for step in _steps(n, opponents) for i in range(n)]
    return sorted({(min(pair), max(pair)) for pair in places})


def _steps(n: int, opponents: int) -> list[int]:
    """Distances round the table at which answers meet: each gives two opponents, that across the table one."""
    steps = list(range(1, opponents // 2 + 1))
    if opponents % 2:
        steps.append(n // 2 if n % 2 == 0 else opponents // 2 + 1)
    return steps


def win_rates(n: int, outcomes: Mapping[tuple[int, int], float | None]) -> list[float | None]:
    """Return each answer's mean outcome over its comparisons; ``None`` where none of them has a verdict.

    Args:
        n: Answers of the group.
        outcomes: How i fares against j: 1, 0.5 or 0, or between where a panel is divided; ``None`` without a verdict.
    """
    points: list[list[float]] = [[] for _ in range(n)]
    for (i, j), outcome in outcomes.items():
        if outcome is not None:
            points[i].append(outcome)
            points[j].append(1 - outcome)
    return [fmean(mine) if mine else None for mine in points]


async def tournaments(
    groups: Mapping[str, Sequence[str]],
    opponents: int | None,
    compare: Callable[[Sequence[tuple[str, str, str]]], Awaitable[Sequence[float | None]]],
) -> dict[str, list[float | None]]:
    """Return the win rate of each answer within its group.

    Equal answers tie without being compared, and two texts are compared once, however often they were drawn.

    Args:
        groups: Texts of the answers, by prompt.
        opponents: How many others each meets; all unless given.
        compare: From (prompt, one text, another one) to how the first of them fares.
    """
    meetings = {name: schedule(texts, opponents, name) for name, texts in groups.items()}
    texts_of_pairs = [(name, groups[name][i], groups[name][j]) for name, pairs in meetings.items() for i, j in pairs]
    asked = list(dict.fromkeys((name, min(a, b), max(a, b)) for name, a, b in texts_of_pairs if a != b))
    results = dict(zip(asked, await compare(asked) if asked else [], strict=True))

    def outcome(name: str, one: str, other: str) -> float | None:
        if one == other:
            return NEUTRAL
        result = results[name, min(one, other), max(one, other)]
        return result if result is None or one < other else 1 - result

    return {
        name: win_rates(len(texts), {(i, j): outcome(name, texts[i], texts[j]) for i, j in meetings[name]})
        if len(texts) > 1
        else [NEUTRAL] * len(texts)
        for name, texts in groups.items()
    }
