"""The report's table of judges."""

from __future__ import annotations

from typing import Any

from levelhead.report.notes import judges
from levelhead.report.reading import Run


def step(number: int, **values: Any) -> dict[str, Any]:
    return {"step": number, "stage": "grpo", **{f"judges/even.one/{name}": value for name, value in values.items()}}


def test_a_judge_has_its_totals_and_its_last_drift() -> None:
    run = Run("r")
    run.metrics += [step(1, calls=3, grade=0.5, drift=0.0, down=0), step(2, calls=4, grade=0.7, drift=-0.25, down=1)]
    shown = judges(run)
    for cell in ("even.one", "<td>7</td>", "0.600", "-0.250", "<td>1</td>"):
        assert cell in shown


def test_a_judge_of_pairs_shows_how_often_their_order_decided() -> None:
    run = Run("r")
    run.metrics += [step(1, calls=4, order_disagreement=0.5), step(2, calls=4), step(3, calls=4, order_disagreement=1)]
    shown = judges(run)
    assert "Turned by order" in shown
    assert "<td>75%</td>" in shown


def test_a_run_without_a_list_of_judges_has_no_table() -> None:
    run = Run("r")
    run.metrics += [{"step": 1, "judge/calls": 3}]
    assert judges(run) == ""


def test_what_is_no_number_is_left_out() -> None:
    run = Run("r")
    run.metrics += [step(1, calls="many", grade=None), step(2, calls=2)]
    assert "<td>2</td>" in judges(run)
