"""Coroutines that are waited for together: none is lost, none outlives the wait."""

from __future__ import annotations

import asyncio

import pytest

from levelhead.waiting import all_of, all_or_none


async def _ends(after: int, ended: list[int], error: Exception | None = None) -> int:
    for _ in range(after):
        await asyncio.sleep(0)
    if error is not None:
        raise error
    ended.append(after)
    return after


async def test_results_come_in_the_order_of_the_calls() -> None:
    assert await all_of(_ends(after, []) for after in (5, 1, 3)) == [5, 1, 3]
    assert await all_or_none(_ends(after, []) for after in (5, 1, 3)) == [5, 1, 3]


async def test_all_are_waited_for_and_then_the_first_error_is_raised() -> None:
    ended: list[int] = []
    with pytest.raises(KeyError, match="second"):
        await all_of([_ends(9, ended), _ends(2, ended, KeyError("second")), _ends(1, ended, ValueError("third"))])
    assert ended == [9]


async def test_an_error_that_comes_last_gives_way_to_any_other() -> None:
    calls = [_ends(1, [], KeyError("budget")), _ends(3, [], ValueError("outage"))]
    with pytest.raises(ValueError, match="outage"):
        await all_of(calls, KeyError)


async def test_the_first_error_ends_what_still_runs() -> None:
    ended: list[int] = []
    with pytest.raises(KeyError):
        await all_or_none([_ends(10**6, ended), _ends(2, ended, KeyError())])
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not ended
