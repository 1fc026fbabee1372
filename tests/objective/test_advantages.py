"""The claims of ``objective.advantages`` that hold by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from levelhead.objective import advantages

DEAD = [[0.7] * 8, [1.0, 0.0] * 4]
KINDS = {
    "numpy32": lambda x: np.asarray(x, dtype=np.float32),
    "numpy64": lambda x: np.asarray(x, dtype=np.float64),
    "torch32": lambda x: torch.tensor(x, dtype=torch.float32),
    "torch64": lambda x: torch.tensor(x, dtype=torch.float64),
    "bfloat16": lambda x: torch.tensor(x, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
@pytest.mark.parametrize("eps", [0.0, 1e-9, 1e-6, 1e-4])
def test_equal_rewards_give_exactly_zero(name, make, eps):
    result = advantages.compute(name, make(DEAD), eps=eps)
    assert [float(v) for v in result.values_gk[0]] == [0.0] * 8
    assert [bool(v) for v in result.live_g] == [False, True]
    assert all(math.isfinite(float(v)) and v != 0 for v in result.values_gk[1])


@pytest.mark.parametrize("make", [KINDS["numpy32"], KINDS["numpy64"], KINDS["torch32"]])
@pytest.mark.parametrize("pair", [(0.0, 1.0), (0.1, 0.3), (-2.0, 7.5), (0.7, 0.70001), (0.0, 1e-30), (0.0, 1e30)])
def test_two_different_rewards_give_plus_and_minus_one_whatever_the_gap(make, pair):
    population = advantages.compute("grpo", make([pair]), ddof=0, eps=0.0).values_gk[0]
    assert [float(v) for v in population] == [-1.0, 1.0]
    sample = advantages.compute("grpo", make([pair]), ddof=1, eps=0.0).values_gk[0]
    assert [float(v) for v in sample] == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], rel=1e-6)


def test_dr_grpo_halves_a_gap_of_two():
    values = advantages.compute("dr_grpo", [[0.9, 0.1]]).values_gk[0]
    assert values.tolist() == pytest.approx([0.4, -0.4], abs=1e-15)


def test_rloo_subtracts_the_mean_of_the_others():
    values = advantages.compute("rloo", [[1.0, 0.0, 0.5, 0.0]]).values_gk[0]
    assert values.tolist() == pytest.approx([1 - 0.5 / 3, -1.5 / 3, 0.5 - 1 / 3, -1.5 / 3])


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown advantage estimator 'gpro'; known: grpo, dr_grpo, rloo"):
        advantages.compute("gpro", [[0.0, 1.0]])
