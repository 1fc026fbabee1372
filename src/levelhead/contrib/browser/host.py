"""The browser process: found, started once, watched, never left behind; and the pool of pages that it keeps open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import weakref
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import async_playwright

from levelhead.contrib.browser.leftovers import BrowserRecord, Process, end_leftovers, parent_of, records_folder
from levelhead.contrib.browser.pages import Report, TabLostError
from levelhead.contrib.browser.tab import Tab, init_script
from levelhead.errors import InputError

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright


ENVIRONMENT_VARIABLE = "LEVELHEAD_CHROMIUM"
"""Path of the Chromium to use, where the recipe names none."""

_COMMANDS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_MAC = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)

SWITCHES = (
    "--disable-gpu",
    # Everything but loopback goes to a proxy that does not exist; Chromium's implicit exceptions are taken back.
    "--proxy-server=http://127.0.0.1:9",
    "--proxy-bypass-list=<-loopback>;127.0.0.1;localhost;[::1]",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    # Pages in the background keep full speed.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
)
"""Switches on top of Playwright's own."""

HOW_TO_INSTALL = (
    "install one (Debian: apt-get install -y --no-install-recommends chromium libatomic1; elsewhere: playwright "
    f"install chromium) or name it in tasks[].executable or the environment variable {ENVIRONMENT_VARIABLE}"
)


def find_chromium(named: str | None = None, bundled: str | None = None) -> Path:
    """Find the Chromium to start.

    Args:
        named: Path from the recipe; nothing else is tried.
        bundled: Where Playwright keeps a browser of its own, installed or not.

    Returns:
        The named path, else ``$LEVELHEAD_CHROMIUM``, else Playwright's own, else the first command on the path.

    Raises:
        InputError: There is none, or the named one does not exist.
    """
    for source, path in (("tasks[].executable", named), (ENVIRONMENT_VARIABLE, os.environ.get(ENVIRONMENT_VARIABLE))):
        if path:
            if not os.access(path, os.X_OK):
                raise InputError(f"{source} is {path}, which is not a program; {HOW_TO_INSTALL}")
            return real_binary(Path(path))
    if bundled and os.access(bundled, os.X_OK):
        return Path(bundled)
    for command in (*_COMMANDS, *_MAC):
        executable = shutil.which(command)
        if executable:
            return real_binary(Path(executable))
    raise InputError(f"no Chromium found for the browser task; {HOW_TO_INSTALL}")


def real_binary(path: Path) -> Path:
    """Return the program behind Debian's wrapper scripts, which may not ``exec`` it and so hide its process."""
    behind = Path("/usr/lib/chromium") / path.name
    if path.parent == Path("/usr/bin") and os.access(behind, os.X_OK):
        return behind
    return path


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
            playwright = await _driver()
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


async def _driver() -> Playwright:
    """Start Playwright's driver; one whose start is cancelled is stopped, since nobody else holds it."""
    starting = asyncio.ensure_future(async_playwright().start())
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await (await starting).stop()
        raise


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


class Pool:
    """Lends tabs, and restarts the browser when it is gone.  Belongs to one event loop.

    A tab keeps its MiniWoB++ page between episodes, since loading one costs ten times what a reset costs.

    Args:
        live: Tabs that may be lent at once; a further request waits.
        spare: Further tabs kept open, so that a change of page finds one loaded.
        timeout: Seconds a page may take to answer.
        executable: Path of the browser; found unless given.
        report: Told what happens to the browser and its pages.

    Attributes:
        host: The browser, if one has been started.
    """

    def __init__(self, live: int, spare: int, timeout: float, executable: str | None, report: Report) -> None:
        self._most = live + spare
        self._timeout = timeout
        self._executable = executable
        self._report = report
        self.host: Host | None = None
        self._slots = asyncio.Semaphore(live)
        self._starting = asyncio.Lock()
        self._idle: list[Tab] = []
        self._lent: dict[Tab, Host] = {}
        self._opening = 0

    async def lend(self, name: str) -> Tab:
        """Lend a tab with a MiniWoB++ page loaded, until :meth:`give_back`.

        Raises:
            InputError: The browser cannot be started.
            TabLostError: The page could not be loaded.
        """
        await self._slots.acquire()
        try:
            host = await self.running()
            tab = await self._take(host, name)
        except BaseException:
            self._slots.release()
            raise
        self._lent[tab] = host
        try:
            await tab.load(name)
        except BaseException:
            await self.give_back(tab, fit=False)
            raise
        return tab

    async def give_back(self, tab: Tab, *, fit: bool) -> None:
        """Take a tab back; one that is not fit for further use is closed."""
        host = self._lent.pop(tab)
        try:
            if fit and host is self.host:
                self._idle.append(tab)
            elif host.connected:
                await tab.close()
        finally:
            self._slots.release()

    async def close(self) -> None:
        """Close everything; the pool starts afresh if it is used again."""
        host, self.host = self.host, None
        self._idle.clear()
        if host is not None:
            await host.close()

    def kill(self) -> None:
        """End the browser at once, without the event loop."""
        if self.host is not None:
            self.host.kill()

    async def running(self) -> Host:
        """Return the browser, started if it is not running.

        Raises:
            InputError: It cannot be started.
        """
        async with self._starting:
            if self.host is not None and not self.host.connected:
                lost = sum(host is self.host for host in self._lent.values())
                self._report("browser-lost", f"the browser is gone, and {lost} episodes with it; starting another")
                await self.close()
            if self.host is None:
                self.host = await Host.start(self._executable, self._report)
            return self.host

    async def _take(self, host: Host, name: str) -> Tab:
        ready = [tab for tab in self._idle if tab.loaded == name]
        if ready:
            self._idle.remove(ready[-1])
            return ready[-1]
        if self._idle and len(self._idle) + len(self._lent) + self._opening >= self._most:
            return self._spared()
        self._opening += 1
        try:
            return await host.new_tab(self._timeout)
        finally:
            self._opening -= 1

    def _spared(self) -> Tab:
        """Take the idle tab that will be missed least: the oldest of the page that most idle tabs show."""
        shown = Counter(tab.loaded for tab in self._idle)
        tab = max(self._idle, key=lambda tab: shown[tab.loaded])
        self._idle.remove(tab)
        return tab
