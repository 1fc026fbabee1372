"""Browser pages that wait for episodes: a bounded number, kept open, each on the page it showed last."""

from __future__ import annotations

import asyncio
from collections import Counter

from levelhead.contrib.browser.host import Host
from levelhead.contrib.browser.lost import Report
from levelhead.contrib.browser.tab import Tab


class Pool:
    """Lends tabs, and restarts the browser when it is gone.  Belongs to one event loop.

    A tab keeps its MiniWoB++ page between episodes, since loading one costs ten times what a reset costs.

    Args:
        live: Tabs that may be lent at once; a further request waits.
        spare: Further tabs kept open, so that a change of page finds one loaded.
        timeout: Seconds a page may take to answer.
        executable: Path of the browser; found unless given.
        report: Told what happens to the browser and its pages.
    """

    def __init__(self, live: int, spare: int, timeout: float, executable: str | None, report: Report) -> None:
        self._most = live + spare
        self._timeout = timeout
        self._executable = executable
        self._report = report
        self._host: Host | None = None
        self._slots = asyncio.Semaphore(live)
        self._starting = asyncio.Lock()
        self._idle: list[Tab] = []
        self._lent: dict[Tab, Host] = {}
        self._opening = 0

    @property
    def host(self) -> Host | None:
        """The browser, if one has been started."""
        return self._host

    async def warm(self) -> None:
        """Start the browser, if it is not running.

        Raises:
            InputError: It cannot be started.
        """
        await self._running()

    async def lend(self, name: str) -> Tab:
        """Lend a tab with a MiniWoB++ page loaded, until :meth:`give_back`.

        Raises:
            InputError: The browser cannot be started.
            TabLostError: The page could not be loaded.
        """
        await self._slots.acquire()
        try:
            host = await self._running()
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
            if fit and host is self._host:
                self._idle.append(tab)
            elif host.connected:
                await tab.close()
        finally:
            self._slots.release()

    async def close(self) -> None:
        """Close everything; the pool starts afresh if it is used again."""
        host, self._host = self._host, None
        self._idle.clear()
        if host is not None:
            await host.close()

    def kill(self) -> None:
        """End the browser at once, without the event loop."""
        if self._host is not None:
            self._host.kill()

    async def _running(self) -> Host:
        async with self._starting:
            if self._host is not None and not self._host.connected:
                lost = sum(host is self._host for host in self._lent.values())
                self._report("browser-lost", f"the browser is gone, and {lost} episodes with it; starting another")
                await self.close()
            if self._host is None:
                self._host = await Host.start(self._executable, self._report)
            return self._host

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
