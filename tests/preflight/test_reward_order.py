"""Perfect answers are worth more under their own prompts; a reward of style alone says nothing about that."""

from __future__ import annotations

import pytest

from faults.known import inject
from faults.probe import setup_of
from levelhead.preflight import preflight
from levelhead.preflight.checks.rewards_order import _own_prompts


@pytest.mark.parametrize("fault", ["reward-of-the-next-row", "demonstrations-out-of-step"])
def test_answers_that_are_judged_by_another_row_are_told_of(fault: str) -> None:
    with inject(fault):
        report = preflight(setup_of(), families=["rewards/order"])
    told = {check.name: check.message for check in report.checks if check.status != "pass"}
    assert "out of step" in told["rewards/order/echo"]


def test_the_same_answer_is_compared_under_its_own_prompt_and_under_another() -> None:
    # Answer 2 stands second among the perfect ones and first among those under the prompt before.
    assert _own_prompts({"oracle": [1.0, 1.0, 1.0], "other": [0.2, 0.1, 0.0]}) == (3, 3)
    assert _own_prompts({"oracle": [0.3, 0.2, None], "other": [0.5, 0.1, 0.3]}) == (0, 1)


def test_a_reward_of_style_alone_compares_nothing() -> None:
    lengths = [-3.0, -5.0, -4.0]
    assert _own_prompts({"oracle": lengths, "other": [*lengths[1:], lengths[0]]}) == (0, 0)
