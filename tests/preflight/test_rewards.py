"""What the preflight says of a reward when it knows no perfect answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from levelhead.preflight.checks.rewards_order import RewardsOrder

TASK: Any = SimpleNamespace(name="mine")
_order = RewardsOrder()._judged


@pytest.mark.parametrize("rewards", [[0.0, 0.0], [0.0, 0.3]])
def test_a_task_without_an_oracle_is_told_of_no_fault(rewards: list[float]) -> None:
    """A reward for exact answers gives the same to an empty answer and to nonsense: that is no warning."""
    empty, nonsense = rewards
    check = _order(TASK, {"empty": [empty] * 4, "gibberish": [nonsense] * 4}, 1.0)
    assert check.status == "pass"
    assert "no oracle" in check.message
    assert ("tasks[].oracle" in check.message) == (empty == nonsense)


def test_a_constant_reward_is_a_fault_where_there_is_an_oracle() -> None:
    assert _order(TASK, {"oracle": [1.0] * 4, "empty": [1.0] * 4, "gibberish": [1.0] * 4}, 1.0).status == "fail"
