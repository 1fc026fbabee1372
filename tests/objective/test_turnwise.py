"""Credit by turn: numbers worked out by hand, and gradients against a decision process that is enumerated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from levelhead.objective.advantages import Advantages, compute
from oracle.decision_process import gradients, groups, true_gradient

PAID = [[[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]]
TURNS = [[[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]]
STATES = [[[0.0, 1.0], [0.0, 2.0], [0.0, 0.0]]]
TOTALS = [[2.0, 0.0, 0.5]]
KINDS = ("return_to_go", "loo_gae", "mt_grpo", "gigpo")


def turns(kind: str, totals: Any = TOTALS, paid: Any = PAID, states: Any = STATES, **settings: Any) -> Advantages:
    arrays = {"turn_rewards_gkn": paid, "turns_gkn": TURNS, "states_gkn": states}
    return compute(kind, np.array(totals), **{name: np.array(array) for name, array in arrays.items()}, **settings)


@pytest.mark.parametrize(
    ("kind", "settings", "by_hand"),
    [
        # Returns: (2, 1), (0, 0), (0.5).  Nobody else is in the second states: others at turn 2, the ended one with 0.
        ("return_to_go", {}, [[1.75, 1.0], [-1.25, -0.5], [-0.5, 0.0]]),
        ("return_to_go", {"baseline": "turn"}, [[1.75, 1.0], [-1.25, -1.0], [-0.5, 0.0]]),
        ("return_to_go", {"baseline": "episode"}, [[1.75, 1.0], [-1.25, -0.5], [-0.5, 0.0]]),
        # Discounted by half: first returns 1.5, 0, 0.5.
        ("return_to_go", {"discount": 0.5}, [[1.25, 1.0], [-1.0, -0.5], [-0.25, 0.0]]),
        # Values of turn 1: 0.25, 1.25, 1; of turn 2: 0, 0.5.  delta_1 = r + V_2 - V_1: 0.75, -0.75, -0.5.
        ("loo_gae", {"trace": 0.0}, [[0.75, 1.0], [-0.75, -0.5], [-0.5, 0.0]]),
        ("loo_gae", {"trace": 0.5}, [[1.25, 1.0], [-1.0, -0.5], [-0.5, 0.0]]),
        ("loo_gae", {"trace": 1.0}, [[1.75, 1.0], [-1.25, -0.5], [-0.5, 0.0]]),
        # Outcomes 1, 0, 0.5 standardise to 1, -1, 0; first turns 1, 0, 0 to 2, -1, -1 over sqrt(3).
        (
            "mt_grpo",
            {"eps": 0.0},
            [[1 + 2 / 3**0.5, 1.0], [-1 - 1 / 3**0.5, -1.0], [-1 / 3**0.5, 0.0]],
        ),
    ],
)
def test_numbers_by_hand(kind: str, settings: Mapping[str, Any], by_hand: list[list[float]]) -> None:
    made = turns(kind, **settings)
    np.testing.assert_allclose(made.turns_gkn, [by_hand], atol=1e-12)
    counts = np.sum(TURNS, axis=2)
    np.testing.assert_allclose(made.values_gk, np.sum(made.turns_gkn, axis=2) / counts)


def test_gigpo_adds_the_comparison_among_turns_in_one_state() -> None:
    states = [[[0.0, 1.0], [0.0, 1.0], [0.0, 0.0]]]
    made = turns("gigpo", totals=[[2.0, 0.0, 1.0]], states=states, eps=0.0, discount=1.0, ddof=0)
    episode = np.array([1.0, -1.0, 0.0]) * 1.5**0.5
    np.testing.assert_allclose(made.turns_gkn[0, :, 0], 2 * episode, atol=1e-12)
    np.testing.assert_allclose(made.turns_gkn[0, :2, 1], np.add(episode[:2], [1.0, -1.0]), atol=1e-12)
    assert made.turns_gkn[0, 2, 1] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_equal_episodes_teach_exactly_nothing(kind: str) -> None:
    same = compute(
        kind,
        np.full((1, 3), 0.7),
        turn_rewards_gkn=np.full((1, 3, 2), 0.1),
        turns_gkn=np.ones((1, 3, 2)),
        states_gkn=np.broadcast_to([0.0, 1.0], (1, 3, 2)),
    )
    assert not same.has_signal_g[0]
    assert np.all(same.turns_gkn == 0)


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_and_torch_agree_and_the_clip_bounds_turns(kind: str) -> None:
    arrays = {"turn_rewards_gkn": PAID, "turns_gkn": TURNS, "states_gkn": STATES}
    tensors = {name: torch.tensor(array, dtype=torch.float64) for name, array in arrays.items()}
    there = compute(kind, torch.tensor(TOTALS, dtype=torch.float64), **tensors, clip=0.6)
    np.testing.assert_allclose(turns(kind, clip=0.6).turns_gkn, there.turns_gkn.numpy(), atol=1e-12)
    assert float(abs(there.turns_gkn).max()) == 0.6


def test_one_turn_makes_return_to_go_rloo() -> None:
    rewards = np.random.default_rng(0).normal(size=(5, 4))
    one = np.ones((5, 4, 1))
    made = compute("return_to_go", rewards, turn_rewards_gkn=0 * one, turns_gkn=one, states_gkn=0 * one)
    np.testing.assert_allclose(made.turns_gkn[:, :, 0], compute("rloo", rewards).values_gk, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"turns_gkn": [[[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]]}, "0 after its last"),
        ({"turns_gkn": [[[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]]}, "without any turn"),
        ({"turn_rewards_gkn": [[[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]]}, "pays a turn"),
        ({"states_gkn": [[[0.0], [0.0], [0.0]]]}, "have shapes"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change: Mapping[str, Any], says: str) -> None:
    arrays = {"turn_rewards_gkn": PAID, "turns_gkn": TURNS, "states_gkn": STATES, **change}
    with pytest.raises(ValueError, match=says):
        compute("return_to_go", np.array(TOTALS), **{k: np.array(v) for k, v in arrays.items()})


def bias(kind: str, *, mean_of_turns: bool = False, scaled: bool = False, **settings: Any) -> float:
    """Relative distance of the expected from the true gradient; ``scaled``, of its direction alone."""
    every = groups(3)
    arrays = {name: getattr(every, name) for name in ("turn_rewards_gkn", "turns_gkn", "states_gkn")}
    made = compute(kind, every.rewards_gk, **arrays, **settings).turns_gkn
    rows = gradients(every, made, mean_of_turns=mean_of_turns)
    expected, true = np.tensordot(every.probabilities_g, rows, 1), true_gradient()
    scale = np.sum(expected * true) / np.sum(true * true) if scaled else 1.0
    return float(np.linalg.norm(expected - scale * true) / np.linalg.norm(scale * true))


@pytest.mark.parametrize("baseline", ["state", "turn", "episode"])
def test_return_to_go_is_unbiased_where_the_policy_decides_how_many_turns_there_are(baseline: str) -> None:
    assert bias("return_to_go", baseline=baseline) < 1e-12
    assert bias("loo_gae", baseline=baseline, trace=1.0) < 1e-12


def test_the_other_combinations_are_biased_in_their_direction_too() -> None:
    assert bias("loo_gae", baseline="turn", trace=0.0, scaled=True) > 0.2
    assert bias("mt_grpo", scaled=True) > 0.2
    assert bias("gigpo", discount=1.0, scaled=True) > 0.1
    assert bias("return_to_go", mean_of_turns=True, scaled=True) > 0.2
