"""Which page gives way, where another one has to be loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

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
