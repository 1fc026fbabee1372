"""Waits grow, are jittered by the call's content, and no ``Retry-After`` shortens them or makes them endless."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levelhead.tasks.endpoint.exchange import LONGEST_RETRY_AFTER_S, LONGEST_WAIT_S, Waits, read_retry_after

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ASKED = st.one_of(st.none(), st.floats(0, 1e12))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        *(("0", 0), ("7", 7), (" 7 ", 7), ("0.25", 0.25), ("999999999", 999999999)),
        *(("Tue, 01 Jan 2030 00:00:30 GMT", 30), ("Mon, 01 Jan 2029 00:00:00 GMT", 0), ("1 Jan 2030 00:01:00", 60)),
        *((None, None), ("", None), ("soon", None), ("-1", None), ("+1", None), ("1e9", None), ("nan", None)),
        *(("inf", None), ("1, 2", None), ("0x10", None), ("\u0667", None), ("9" * 400, None), ("1 s", None)),
        *(("Tue, 99 Jan 2030 00:00:30 GMT", None), ("Tue, 01 Jan 99999 00:00:30 GMT", None)),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert read_retry_after(header, NOW) == seconds


@given(st.text())
def test_any_retry_after_is_seconds_or_nothing(header: str) -> None:
    seconds = read_retry_after(header, NOW)
    assert seconds is None or seconds >= 0


@given(backoff=st.floats(1e-6, 1e6), seed=st.text(), asked=st.lists(ASKED, max_size=40), left=st.floats(0, 1e9))
def test_waits_have_a_floor_and_a_ceiling(backoff: float, seed: str, asked: list[float | None], left: float) -> None:
    waits = Waits(backoff, seed)
    for turn, wish in enumerate(asked):
        seconds = waits.next(wish, left)
        floor = min(backoff * 2**turn, LONGEST_WAIT_S) / 2
        assert min(floor, left) <= seconds <= min(left, 1.1 * LONGEST_RETRY_AFTER_S)
        if wish is not None:
            assert seconds >= min(wish, LONGEST_RETRY_AFTER_S, left)


def test_attempts_are_few_in_any_patience() -> None:
    """With the defaults, ten minutes of patience are at most 45 attempts, whatever the endpoint asks for."""
    for seed in range(50):
        waits, clock, attempts = Waits(1.0, str(seed)), 0.0, 1
        while clock < 600:
            clock += waits.next(0.0, 600 - clock)
            attempts += 1
        assert attempts <= 45


def test_jitter_is_fixed_by_the_call_and_differs_between_calls() -> None:
    def first(seed: str) -> list[float]:
        waits = Waits(1.0, seed)
        return [waits.next(None, 600) for _ in range(5)]

    assert first("a") == first("a")
    assert len({first(str(i))[0] for i in range(100)}) == 100
