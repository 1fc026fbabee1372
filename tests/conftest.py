"""A browser for the tests that need one, a check of every run's metric names, the same generated cases, no network.

A test that starts a browser is marked ``browser``: without a Chromium that starts it is skipped, unless
LEVELHEAD_REQUIRE_BROWSER=1 makes that a failure.  No other test can start one.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from levelhead.errors import InputError
from levelhead.metrics.catalogue import find
from levelhead.records import Event, StepRecord
from levelhead.tasks.metering import RewardTally
from levelhead.training.rundir import RunDir

if TYPE_CHECKING:
    from levelhead.contrib.browser.task import BrowserTask


# No test asks the hub: where no network is, each question would wait for several attempts.
os.environ["HF_HUB_OFFLINE"] = "1"

# Each module is compiled once, and not again in every worker and every process that tests start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What is imported while tests are collected lives as long as the process: nobody looks for garbage in it.
gc.disable()

# The same cases in every run of the suite; HYPOTHESIS_PROFILE=default looks for new ones.
with suppress(ModuleNotFoundError):  # a bare machine with a GPU runs the tests marked gpu without it
    from hypothesis import settings

    settings.register_profile("same", derandomize=True, deadline=None)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# A shell starts background jobs with SIGINT ignored, and processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests marked ``browser`` their fixture, and begin with the files that hold slow tests.

    Begun last, one of those would keep a single process busy alone.
    """
    for item in items:
        if item.get_closest_marker("browser") is not None and isinstance(item, pytest.Function):
            item.fixturenames.insert(0, "require_browser")
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Look for garbage again, in what the tests themselves make."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 50)
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List every reason for which tests were skipped, with how many and in which files."""
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for report in terminalreporter.stats.get("skipped", []):
        _, _, reason = report.longrepr
        reasons[reason.removeprefix("Skipped: ")][report.nodeid.partition("::")[0]] += 1
    if reasons:
        terminalreporter.section("skipped")
    for reason, files in sorted(reasons.items(), key=lambda item: -item[1].total()):
        terminalreporter.line(f"{files.total()} skipped: {reason}")
        terminalreporter.line(f"    {', '.join(f'{name} ({count})' for name, count in sorted(files.items()))}")


def missing(reason: str) -> None:
    """Skip the test, or fail it where a browser is required."""
    if os.environ.get("LEVELHEAD_REQUIRE_BROWSER") == "1":
        pytest.fail(f"LEVELHEAD_REQUIRE_BROWSER=1, but: {reason}")
    pytest.skip(reason)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def task() -> AsyncIterator[BrowserTask]:
    """A browser task over all pages, with one browser for all tests that leave it whole."""
    from levelhead.contrib.browser.pages import page_names
    from levelhead.contrib.browser.task import BrowserTask
    from levelhead.recipe.environments import Browser

    try:
        made = BrowserTask(Browser(kind="browser", tasks=list(page_names()), items=2, pages=4, spare_pages=0))
        await made.pool().running()
    except InputError as error:
        missing(str(error))
    yield made
    await made.close()


@pytest.fixture(autouse=True)
def _sources_parsed_undisturbed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests that read source collect no garbage meanwhile.

    A finalizer that logs a traceback parses source too, and within ``ast.parse`` CPython 3.11 then raises
    ``SystemError: AST constructor recursion depth mismatch``.
    """
    if not hasattr(request.module, "ast"):
        yield
        return
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def require_browser(task: BrowserTask) -> None:
    """Skip the test, or fail it, where no browser can be started."""


@pytest.fixture(autouse=True)
def no_other_browser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests that are not marked ``browser`` from starting one, in child processes too."""
    if request.node.get_closest_marker("browser") is None:
        monkeypatch.setenv("LEVELHEAD_CHROMIUM", "/only/tests/marked/browser/start/one")


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Leave to the system when files reach the disk: what a power cut would lose, no test can see."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _file: None)
        yield


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
