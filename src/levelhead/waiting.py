"""Waiting for several coroutines at once, without losing one of them where another fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def all_of(calls: Iterable[Awaitable[T]], last: type[BaseException] | tuple[()] = ()) -> list[T]:
    """Wait for all of some calls, so that none is lost, and return what they came to, in order.

    Args:
        calls: What to wait for.
        last: Errors of this class are raised only where there is no other.

    Raises:
        BaseException: What one of them ended with, once all have ended.
    """
    ends = await asyncio.gather(*calls, return_exceptions=True)
    if errors := [end for end in ends if isinstance(end, BaseException)]:
        raise min(errors, key=lambda error: isinstance(error, last))
    return [end for end in ends if not isinstance(end, BaseException)]


async def all_or_none(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await coroutines side by side and return what they came to; the first error ends the others and is raised.

    Unlike after :func:`asyncio.gather`, none of them still runs when this returns.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
