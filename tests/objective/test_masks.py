"""Which tokens count, and how much: truncation, top entropy, importance weights."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from levelhead.objective import losses, masks
from levelhead.objective.losses import Correction
from levelhead.objective.numerics import masked_mean, unmasked

MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]])


def test_the_top_fifth_of_thirty_tokens_are_six():
    entropies = torch.arange(30.0).view(3, 10)
    mask = torch.ones(3, 10)
    assert masks.entropy_threshold(entropies, mask, 0.2) == 24


def test_padding_never_counts_among_the_top():
    entropies = torch.tensor([[1.0, 2.0, 99.0], [3.0, 99.0, 99.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert masks.entropy_threshold(entropies, mask, 1 / 3) == 3.0


def test_all_tokens_are_kept_at_fraction_one():
    entropies = torch.rand(3, 3, generator=torch.Generator().manual_seed(0))
    assert masks.entropy_threshold(entropies, MASK, 1.0) == float(entropies[MASK != 0].min())


def test_weights_multiply():
    a, b = torch.tensor([[True, False]]), torch.tensor([[0.5, 0.5]])
    assert masks.combine_weights(a, None, b).tolist() == [[0.5, 0.0]]
    assert masks.combine_weights(None, None) is None


OLD = torch.log(torch.tensor([[3.0, 1.0, 0.2], [1.0, 1.5, 7.0]]))
SAMPLER = torch.zeros(2, 3)
IMPORTANCE_MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])


@pytest.mark.parametrize(
    ("mode", "low", "expected"),
    [
        ("token_truncate", 0.0, [[2.0, 1.0, 0.2], [1.0, 1.5, 0.0]]),
        ("token_truncate", 0.5, [[2.0, 1.0, 0.5], [1.0, 1.5, 0.0]]),
        ("token_mask", 0.5, [[0.0, 1.0, 0.0], [1.0, 1.5, 0.0]]),
        ("sequence_truncate", 0.7, [[0.7, 0.7, 0.7], [1.5, 1.5, 0.0]]),
        ("sequence_mask", 0.7, [[0.0, 0.0, 0.0], [1.5, 1.5, 0.0]]),
        # (3 * 1 * 0.2)^(1/3) = 0.843 and (1 * 1.5)^(1/2) = 1.225
        ("geometric_mask", 0.84, [[3.0, 1.0, 0.2], [1.0, 1.5, 0.0]]),
        ("geometric_mask", 0.85, [[0.0, 0.0, 0.0], [1.0, 1.5, 0.0]]),
    ],
)
def test_hand_numbers_of_importance_weights(mode, low, expected):
    weights = losses.importance_weights(mode, OLD, SAMPLER, IMPORTANCE_MASK, low=low, high=2.0)
    torch.testing.assert_close(weights.weight_nt, torch.tensor(expected))
    assert not weights.weight_nt.requires_grad


def test_importance_statistics_report_what_was_cut():
    stats = losses.importance_weights("token_truncate", OLD, SAMPLER, IMPORTANCE_MASK).stats
    prefix = "sampling/importance_sampling_ratio/"
    reported = {name.removeprefix(prefix): value.item() for name, value in stats.items()}
    assert reported == pytest.approx({"min": 0.2, "mean": 5.7 / 5, "max": 2.0, "cut_mean": 0.2})


def test_importance_weights_are_one_where_sampler_and_trainer_agree():
    for mode in get_args(Correction):
        weights = losses.importance_weights(mode, OLD, OLD, IMPORTANCE_MASK)
        assert torch.equal(weights.weight_nt, IMPORTANCE_MASK.float())


def test_importance_weights_stay_finite_for_long_sequences():
    gap = torch.full((1, 5000), 0.1)
    for mode in ("sequence_truncate", "sequence_mask", "geometric_mask"):
        weights = losses.importance_weights(mode, gap, torch.zeros(1, 5000), torch.ones(1, 5000))
        assert torch.isfinite(weights.weight_nt).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: masks.entropy_threshold(torch.zeros(2, 3), MASK, 0.2), "differ in shape"),
        (lambda: masks.entropy_threshold(torch.zeros(3, 3), MASK, 0.0), "fraction"),
        (lambda: masks.entropy_threshold(torch.zeros(3, 3), torch.zeros(3, 3), 0.2), "no token"),
        (lambda: losses.importance_weights("token", OLD, OLD, IMPORTANCE_MASK), "unknown importance correction"),
        (lambda: losses.importance_weights("token_mask", OLD, OLD[:1], IMPORTANCE_MASK), "one shape"),
        (lambda: losses.importance_weights("token_mask", OLD, OLD, IMPORTANCE_MASK, low=3.0), "low < high"),
        (lambda: losses.importance_weights("token_mask", OLD, OLD, torch.zeros(2, 3)), "no token"),
        (lambda: losses.importance_weights("token_mask", OLD * math.nan, OLD, IMPORTANCE_MASK), "not finite"),
    ],
)
def test_bad_input_raises_one_clear_line(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_values_by_position_are_those_of_the_mask_to_the_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    values_nt = torch.rand(5, 9, generator=generator)
    mask_nt = torch.rand(5, 9, generator=generator) < 0.6
    places_m = mask_nt.flatten().nonzero()[:, 0]
    assert torch.equal(unmasked(values_nt, mask_nt, places_m), unmasked(values_nt, mask_nt))
    assert torch.equal(masked_mean(values_nt, mask_nt, places_m), masked_mean(values_nt, mask_nt))
