"""Tournaments: who meets whom, and what a grade is, by hand."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levelhead.tasks.judges.tournament import schedule, tournaments, win_rates

BEST_TO_WORST = {text: 9 - n for n, text in enumerate("abcdefghi")}


async def by_worth(pairs: Sequence[tuple[str, str, str]]) -> list[float | None]:
    """Prefer what is worth more."""
    return [float(BEST_TO_WORST[one] > BEST_TO_WORST[other]) for _, one, other in pairs]


def test_win_rates_by_hand_with_ties_half_and_missing_verdicts_left_out() -> None:
    """0 beats 1, ties with 2, and has no verdict with 3; 1 beats 2; 3 has no verdict at all."""
    outcomes = {(0, 1): 1.0, (0, 2): 0.5, (0, 3): None, (1, 2): 1.0, (1, 3): None, (2, 3): None}
    assert win_rates(4, outcomes) == [0.75, 0.5, 0.25, None]


def test_a_round_robin_ranks_as_worth_does_and_its_mean_is_a_half() -> None:
    rates = asyncio.run(tournaments({"p": list("cabd")}, None, by_worth))["p"]
    assert rates == [pytest.approx(1 / 3), 1, pytest.approx(2 / 3), 0]
    assert statistics.fmean(rate for rate in rates if rate is not None) == pytest.approx(0.5)


def test_equal_answers_tie_and_two_texts_are_compared_once() -> None:
    """By hand: an a wins against both b, ties with the other a: (1 + 1 + 0.5) / 3."""
    asked: list[tuple[str, str, str]] = []

    async def compare(pairs: Sequence[tuple[str, str, str]]) -> list[float | None]:
        asked.extend(pairs)
        return await by_worth(pairs)

    rates = asyncio.run(tournaments({"p": ["b", "a", "b", "a"], "q": ["c", "c"]}, None, compare))
    assert asked == [("p", "a", "b")]
    assert rates == {"p": [pytest.approx(1 / 6), pytest.approx(5 / 6)] * 2, "q": [0.5, 0.5]}


def test_an_answer_without_a_rival_is_neutral_and_costs_nothing() -> None:
    assert asyncio.run(tournaments({"p": ["a"]}, None, by_worth)) == {"p": [0.5]}


@given(st.integers(2, 12), st.integers(1, 11))
def test_each_answer_meets_as_many_others_as_the_recipe_says(n: int, opponents: int) -> None:
    pairs = schedule([str(i) for i in range(n)], opponents, "p")
    met = Counter(i for pair in pairs for i in pair)
    wanted = min(opponents, n - 1)
    assert set(met.values()) == {wanted + (wanted * n % 2)}
    assert len(set(pairs)) == len(pairs)
    assert all(i < j for i, j in pairs)


def test_opponents_are_drawn_by_lot_and_the_same_again() -> None:
    lots = [tuple(schedule(list("abcdefgh"), 2, f"p{n}")) for n in range(600)]
    assert lots == [tuple(schedule(list("abcdefgh"), 2, f"p{n}")) for n in range(600)]
    counts = Counter(pair for lot in lots for pair in lot)
    assert len(counts) == 28
    assert max(counts.values()) < 2 * min(counts.values()), (
        "171 each on average, with a deviation of 11: every pair is as likely"
    )


def test_by_lot_the_mean_grade_is_the_win_rate_against_all() -> None:
    """Three of seven rivals by lot, over 300 lots: the standard error of a mean is below 0.02."""
    texts = list("abcdefgh")
    groups = {f"p{n}": texts for n in range(300)}
    rates = asyncio.run(tournaments(groups, 3, by_worth))
    for i in range(8):
        drawn = [rate for one in rates.values() if (rate := one[i]) is not None]
        assert statistics.fmean(drawn) == pytest.approx((7 - i) / 7, abs=0.06)
