"""From tokens to a scalar: what each mode divides by."""

from __future__ import annotations

import pytest
import torch

from levelhead.objective import losses

VALUES = torch.tensor([[1.0, 2.0, 99.0], [5.0, 99.0, 99.0], [99.0, 99.0, 99.0]])
MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize(
    ("mode", "expected", "count"),
    [("token_mean", 8 / 3, 3), ("sequence_mean", (1.5 + 5) / 2, 2), ("fixed_length", 8 / (3 * 4), 3)],
)
def test_hand_numbers(mode, expected, count):
    assert losses.aggregate(mode, VALUES, MASK, fixed_length=4).item() == pytest.approx(expected)
    assert losses.count(mode, MASK) == count


@pytest.mark.parametrize("mode", ["token_mean", "sequence_mean", "fixed_length"])
def test_rows_with_the_whole_batchs_denominator_add_up_to_the_batch(mode):
    total = losses.count(mode, MASK)
    parts = [
        losses.aggregate(mode, VALUES[i : i + 1], MASK[i : i + 1], fixed_length=4, denominator=total) for i in range(3)
    ]
    whole = losses.aggregate(mode, VALUES, MASK, fixed_length=4)
    assert sum(part.item() for part in parts) == pytest.approx(whole.item())
    assert parts[2].item() == 0


def test_masked_values_never_reach_the_result_or_the_gradient():
    values = torch.tensor([[1.0, float("inf")], [2.0, float("nan")]], requires_grad=True)
    mask = torch.tensor([[1, 0], [1, 0]])
    for mode in ("token_mean", "sequence_mean", "fixed_length"):
        values.grad = None
        result = losses.aggregate(mode, values, mask, fixed_length=2)
        result.backward()
        assert torch.isfinite(result)
        assert torch.equal(values.grad[:, 1], torch.zeros(2))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("mean", VALUES, MASK), {}, "unknown aggregation 'mean'"),
        (("token_mean", VALUES, MASK[:, :2]), {}, "one shape"),
        (("token_mean", VALUES, torch.zeros(3, 3)), {}, "no token"),
        (("fixed_length", VALUES, torch.zeros(3, 3)), {"fixed_length": 4}, "no token"),
        (("token_mean", VALUES, MASK), {"denominator": 0}, "no token"),
        (("fixed_length", VALUES, MASK), {}, "needs fixed_length"),
    ],
)
def test_bad_input_raises_one_clear_line(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        losses.aggregate(*arguments, **options)
