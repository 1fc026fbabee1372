"""A browser for the tests that need one.

Without a Chromium they are skipped, unless LEVELHEAD_REQUIRE_BROWSER=1 makes that a failure.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from levelhead.errors import InputError

if TYPE_CHECKING:
    from levelhead.tasks.browser import BrowserTask


# A shell starts background jobs with SIGINT ignored, and processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def missing(reason: str) -> None:
    """Skip the test, or fail it where a browser is required."""
    if os.environ.get("LEVELHEAD_REQUIRE_BROWSER") == "1":
        pytest.fail(f"LEVELHEAD_REQUIRE_BROWSER=1, but: {reason}")
    pytest.skip(reason)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def task() -> AsyncIterator[BrowserTask]:
    """A browser task over all pages, with one browser for all tests that leave it whole."""
    from levelhead.recipe.tasks import Browser
    from levelhead.tasks.browser import BrowserTask
    from levelhead.tasks.browser.pages import page_names

    try:
        made = BrowserTask(Browser(kind="browser", tasks=list(page_names()), items=2, pages=4, spare_pages=0))
        await made.pool().warm()
    except InputError as error:
        missing(str(error))
    yield made
    await made.close()


@pytest.fixture(scope="session")
def require_browser(task: BrowserTask) -> None:
    """Skip the test, or fail it, where no browser can be started."""
