"""The browser process: started once, watched, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import async_playwright

from levelhead.contrib.browser.chromium import HOW_TO_INSTALL, SWITCHES, find_chromium
from levelhead.contrib.browser.leftovers import BrowserRecord, Process, end_leftovers, parent_of, records_folder
from levelhead.contrib.browser.lost import Report, TabLostError
from levelhead.contrib.browser.tab import Tab, init_script
from levelhead.errors import InputError

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

VIEWPORT = (500, 320)
"""Width and height of a page in pixels; MiniWoB++ needs 160 by 210."""

_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 10.0


class Host:
    """One browser.  Bound to the event loop it was started on."""

    def __init__(self, playwright: Playwright, browser: Browser, record: BrowserRecord) -> None:
        self.record = record
        self._playwright = playwright
        self._browser = browser
        path = record.write(records_folder())
        # Runs at the latest when the interpreter exits, event loop or no event loop.
        self._finalizer = weakref.finalize(self, _end, record, path, os.getpid())

    @classmethod
    async def start(cls, executable: str | None, report: Report) -> Host:
        """Start a browser, after ending those whose trainers are gone.

        Raises:
            InputError: There is no Chromium, or it or Playwright's driver does not start.
        """
        for pid in end_leftovers(records_folder()):
            report("browser-leftover-ended", f"ended browser {pid}, which an earlier run had left behind")
        try:
            playwright = await async_playwright().start()
        except Exception as error:  # of no class of its own
            raise InputError(
                f"Playwright's driver does not start: {error}; what it lacks stands above (on Debian and Ubuntu "
                "often the package libatomic1)"
            ) from error
        try:
            path = find_chromium(executable, playwright.chromium.executable_path)
            browser = await playwright.chromium.launch(
                executable_path=path,
                args=list(SWITCHES),
                timeout=_START_TIMEOUT * 1000,
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
            record = await _identify(browser)
        except PlaywrightError as error:
            await playwright.stop()
            reason = next((line for line in str(error).splitlines() if line.strip()), "")
            raise InputError(f"Chromium does not start: {reason}; {HOW_TO_INSTALL}") from error
        except BaseException:
            await playwright.stop()
            raise
        report("browser-started", f"started {path} {browser.version} as process {record.browser.pid}")
        return cls(playwright, browser, record)

    @property
    def connected(self) -> bool:
        """Whether the browser and the driver are still there; Playwright tells of the first, not of the second."""
        driver = self.record.driver
        return self._browser.is_connected() and (driver is None or driver.alive)

    async def new_tab(self, timeout: float) -> Tab:
        """Open an empty page, in a context of its own.

        A context is a window: the pages of one window hide each other, and a hidden page is slow to take the mouse.

        Raises:
            TabLostError: The browser does not answer.
        """
        try:
            context = await self._browser.new_context(
                viewport={"width": VIEWPORT[0], "height": VIEWPORT[1]},
                timezone_id="UTC",
                locale="en-US",
                accept_downloads=False,
                service_workers="block",
            )
            await context.add_init_script(script=init_script())
            return Tab(await context.new_page(), timeout)
        except PlaywrightError as error:
            raise TabLostError("page-lost", f"no page can be opened: {str(error).partition(chr(10))[0]}") from error

    async def close(self) -> None:
        """Close the browser and the driver; what does not close in time is killed."""
        with contextlib.suppress(PlaywrightError, TimeoutError):
            await asyncio.wait_for(self._browser.close(), _STOP_TIMEOUT)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._playwright.stop(), _STOP_TIMEOUT)
        self.kill()

    def kill(self) -> None:
        """End all processes at once, without the event loop."""
        self._finalizer()


def _end(record: BrowserRecord, path: Path, owner: int) -> None:
    if os.getpid() != owner:  # a forked child inherits the finalizer, but not the browser
        return
    record.end()
    path.unlink(missing_ok=True)


async def _identify(browser: Browser) -> BrowserRecord:
    session = await browser.new_browser_cdp_session()
    answer = await session.send("SystemInfo.getProcessInfo")
    await session.detach()
    pid = next(int(process["id"]) for process in answer["processInfo"] if process["type"] == "browser")
    owner, browser_process = Process.find(os.getpid()), Process.find(pid)
    if owner is None or browser_process is None:
        raise PlaywrightError("the browser ended right after its start")
    parent = parent_of(pid)
    driver = Process.find(parent) if parent not in (None, 1, os.getpid()) else None
    return BrowserRecord(owner, browser_process, driver)
