"""No rollout is lost between the draw and its group, and the copy that draws ahead has the policy's weights."""

from __future__ import annotations

import pytest
import torch

from levelhead.training.collect import Collected
from levelhead.training.watch import AccountedRollouts
from levelhead.training.weight_copies import stale_weights
from small_run import tiny_policy


@pytest.mark.parametrize(
    ("dropped", "unscored", "words"),
    [(0, 0, None), (3, 3, None), (3, 1, "rollouts missing: 2"), (0, 1, "rollouts counted twice: 1")],
)
def test_a_rollout_that_is_left_out_has_no_score(dropped: int, unscored: int, words: str | None) -> None:
    batch = Collected([], episodes=12 - dropped, dropped=dropped, unscored=unscored)
    events = list(AccountedRollouts().sampled(1, batch))
    assert [event.code for event in events] == (["rollouts-missing"] if words else [])
    assert not words or words in events[0].message


def test_a_copy_that_followed_is_the_policy_and_one_that_did_not_is_told_of_by_the_weight() -> None:
    policy = tiny_policy()
    inference_copy = policy.inference_copy()
    assert stale_weights(inference_copy, policy) == []
    name, weight = list(policy.model.named_parameters())[3]
    with torch.no_grad():
        weight.add_(1e-3)
    (event,) = stale_weights(inference_copy, policy)
    assert event.code == "weight-sync"
    assert name in event.message
    inference_copy.follow(policy)
    assert stale_weights(inference_copy, policy) == []
