"""Which page gives way where another one has to be loaded, and what a cancelled start leaves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from levelhead.contrib.browser import host
from levelhead.contrib.browser.host import Pool


async def lent(idle: list[str], name: str) -> tuple[int, list[int]]:
    """Number of the tab that a full pool takes for a page, and of those that stay."""
    pool = Pool(0, len(idle), 1.0, None, lambda *_: None)
    tabs: Any = [SimpleNamespace(loaded=loaded, number=i) for i, loaded in enumerate(idle)]
    pool._idle = list(tabs)
    tab = cast(Any, await pool._take(cast(Any, None), name))
    return tab.number, [cast(Any, left).number for left in pool._idle]


async def test_a_tab_that_shows_the_page_is_taken() -> None:
    assert await lent(["a", "b", "a"], "b") == (1, [0, 2])


async def test_the_page_that_most_tabs_show_gives_way_and_its_oldest_tab() -> None:
    assert await lent(["a", "b", "c", "b", "d"], "e") == (1, [0, 2, 3, 4])


async def test_of_pages_shown_alike_the_oldest_gives_way() -> None:
    assert await lent(["a", "b", "c"], "d") == (0, [1, 2])


async def test_a_start_that_is_cancelled_leaves_no_driver_behind() -> None:
    stopped: list[str] = []

    class Slow:
        async def start(self) -> Any:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return SimpleNamespace(stop=self.stop)

        async def stop(self) -> None:
            stopped.append("driver")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "async_playwright", Slow)
        starting = asyncio.ensure_future(Pool(1, 0, 1.0, None, lambda *_: None).running())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert stopped == ["driver"]
