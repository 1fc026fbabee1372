"""A browser for the tests that need one, a look at the metrics of every run, and the same drawn cases in each.

Without a Chromium they are skipped, unless LEVELHEAD_REQUIRE_BROWSER=1 makes that a failure.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from hypothesis import settings

from levelhead.errors import InputError
from levelhead.metrics.catalogue import find
from levelhead.records import Event, StepRecord
from levelhead.tasks.metering import RewardTally
from levelhead.training.rundir import RunDir

if TYPE_CHECKING:
    from levelhead.contrib.browser import BrowserTask


# The same cases in every run of the suite; HYPOTHESIS_PROFILE=default looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# A shell starts background jobs with SIGINT ignored, and processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that hold slow tests: begun last, one of them would keep a single process busy alone."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)


def missing(reason: str) -> None:
    """Skip the test, or fail it where a browser is required."""
    if os.environ.get("LEVELHEAD_REQUIRE_BROWSER") == "1":
        pytest.fail(f"LEVELHEAD_REQUIRE_BROWSER=1, but: {reason}")
    pytest.skip(reason)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def task() -> AsyncIterator[BrowserTask]:
    """A browser task over all pages, with one browser for all tests that leave it whole."""
    from levelhead.contrib.browser import BrowserTask
    from levelhead.contrib.browser.pages import page_names
    from levelhead.recipe.environments import Browser

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


@pytest.fixture(scope="session", autouse=True)
def declared_metrics() -> Iterator[None]:
    """Fail whatever run writes a metric that :mod:`levelhead.metrics` does not declare."""
    logged: set[str] = set()
    log, append = RewardTally.log, RunDir.append

    def note(tally: RewardTally, name: str, value: float, count: int = 1) -> None:
        logged.add(name)
        log(tally, name, value, count)

    def is_logged(name: str) -> bool:
        return name in logged or name.rpartition("/")[0] in logged  # <name> or <name>/<task>

    def check(folder: RunDir, name: str, records: Iterable[StepRecord | Event]) -> None:
        records = list(records)
        names = {key for one in records if isinstance(one, StepRecord) for key in (*one.values, *one.timings)}
        unknown = sorted(key for key in names if find(key) is None and not is_logged(key))
        assert not unknown, f"metrics without a declaration in levelhead.metrics: {', '.join(unknown)}"
        append(folder, name, records)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RewardTally, "log", note)
        patch.setattr(RunDir, "append", check)
        yield
