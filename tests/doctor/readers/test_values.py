from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levelhead.doctor.readers.values import NotANumberError, flatten, number_of, parse_number, parse_pair


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("'-0.08838'", -0.08838),
        ("'1.5e+04'", 15000.0),
        ("**0.61**", 0.61),
        ("1,568,987.96", 1568987.96),
        ("np.float64(0.31)", 0.31),
        ("np.int64(3)", 3.0),
        ("tensor(0.5, device='cuda:0')", 0.5),
        ("98.02s", 98.02),
        ("4.95s (13.9%)", 4.95),
        ("12.5%", 0.125),
        ("250ms", 0.25),
        ("2069.9 tokens/sample", 2069.9),
        ("~0.5", 0.5),
        ("-inf", -math.inf),
    ],
)
def test_numbers_in_all_their_dress(text: str, value: float) -> None:
    assert parse_number(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "None", "null", "No Log", "-", "N/A"])
def test_absent_is_absent_and_not_zero(text: str) -> None:
    assert parse_number(text) is None


@pytest.mark.parametrize("text", ["3/9", "1m 35s", "8b-v3", "1_000", "0.1.2", "true", "epoch"])
def test_other_text_is_no_number(text: str) -> None:
    with pytest.raises(NotANumberError):
        parse_number(text)


def test_nan_is_read_as_nan() -> None:
    assert math.isnan(parse_number("NaN") or 0.0)


def test_a_mean_may_carry_its_deviation() -> None:
    assert parse_pair("0.102±0.077") == (0.102, 0.077)
    assert parse_pair("0.102") == (0.102, None)


def test_envelopes_leave_no_trace_in_keys() -> None:
    nested = {"step": 3, "data": {"actor/entropy": 0.4}, "rewards": {"acc": {"mean": 0.2}}}
    assert dict(flatten(nested)) == {"step": 3, "actor/entropy": 0.4, "rewards/acc/mean": 0.2}


def test_json_leaves() -> None:
    assert number_of(True) is None
    assert number_of([0.5]) == 0.5
    assert number_of([1, 2]) is None
    assert number_of("0.25") == 0.25
    assert number_of(10**400) == math.inf


@settings(deadline=None, max_examples=300)
@given(st.floats(allow_nan=False))
def test_what_python_prints_is_read_back(value: float) -> None:
    assert parse_number(repr(value)) == value


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=40))
def test_any_text_is_a_number_absent_or_refused(text: str) -> None:
    try:
        result = parse_number(text)
    except NotANumberError:
        return
    assert result is None or isinstance(result, float)
