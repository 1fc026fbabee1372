"""Learnt is what stands above the best constant answer and has not fallen, stratum by stratum."""

from __future__ import annotations

from typing import Any

import pytest

import strata_summary
from levelhead.report.reading import Run
from levelhead.report.scores import Score, Standing, standings


def test_each_stratum_stands_beside_the_constant_answer_and_its_own_past() -> None:
    rows = {(row.task, row.stratum): row for row in standings(Run("x", summary=strata_summary.summary()))}
    assert set(rows) == {
        ("fairness", "condition=ambig"),
        ("fairness", "condition=disambig"),
        ("faithfulness", "answerable=yes"),
        ("faithfulness", "answerable=no"),
    }
    # 2 * 0.91 - 1 with an error of 0.032; the constant answer gets 0.5 here, and after SFT it was 2 * 0.51 - 1.
    ambig = rows["fairness", "condition=ambig"]
    assert ambig.score.value == pytest.approx(0.82)
    assert ambig.constant is not None
    assert ambig.constant.value == 0.5
    assert ambig.over is not None
    assert ambig.over.value == pytest.approx(0.32)
    assert ambig.before is not None
    assert ambig.before.value == pytest.approx(0.02)
    assert (ambig.rate, ambig.n, ambig.learnt, ambig.fell) == (0.91, 256, True, False)
    # Right answers to answerable questions went from 18% to none: it fell, and stands below the constant answer.
    yes = rows["faithfulness", "answerable=yes"]
    assert (yes.fell, yes.learnt, yes.at_chance) == (True, False, True)


@pytest.mark.parametrize(
    ("over", "before", "learnt", "at_chance"),
    [
        (Score(0.3, 0.1), Score(0.1, 0.01), True, False),
        (Score(0.19, 0.1), Score(0.1, 0.01), False, True),  # 1.9 standard errors above a constant answer
        (Score(0.3, 0.1), Score(0.9, 0.01), False, False),  # above it, and fallen from 0.9 to 0.5
        (Score(-0.3, 0.1), None, False, True),
        (Score(0.3, None), None, True, False),  # no error at all: beyond luck
        (Score(0.0, None), None, False, True),
        (None, None, False, False),  # nobody asked what a constant answer scores
    ],
)
def test_learnt_is_beyond_luck_above_the_constant_answer_and_not_fallen(
    over: Score | None, before: Score | None, learnt: bool, at_chance: bool
) -> None:
    row = Standing("t", "k=v", Score(0.5, 0.01), Score(0.2, 0.01), over, before)
    assert (row.learnt, row.at_chance) == (learnt, at_chance)


def test_a_stratum_that_is_nearly_all_right_is_at_no_chance_level_whatever_the_constant_scores() -> None:
    def row(rate: float | None) -> Standing:
        return Standing("t", "answerable=no", Score(0.9, 0.02), Score(1.0, 0.0), Score(-0.1, 0.02), rate=rate)

    assert [row(rate).at_chance for rate in (None, 0.89, 0.9)] == [True, True, False]


def test_a_task_without_strata_stands_as_a_whole_and_an_old_summary_beside_nothing() -> None:
    result: dict[str, Any] = strata_summary.stage((0.6, 0.02), {}, ("A", 0.2, 0.01), (0.4, 0.02), balanced=(0.6, 0.02))
    (row,) = standings(Run("x", summary={"tasks": {"t": {"grpo": result}}}))
    assert (row.stratum, row.learnt) == ("", True)
    old = standings(Run("x", summary=strata_summary.older()))
    assert [(row.task, row.stratum, row.over, row.learnt) for row in old] == [
        ("fairness", "", None, False),
        ("faithfulness", "", None, False),
    ]
    assert standings(Run("x", summary={"tasks": {"t": {"grpo": {"score": "x"}}}})) == []
