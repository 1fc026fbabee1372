"""One browser page that plays episodes of one MiniWoB++ page after another."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from playwright.async_api import Error as PlaywrightError

from levelhead.contrib.browser.actions import Action, ActionError
from levelhead.contrib.browser.pages import CARRIES_STATE, TabLostError, page_images, page_url
from levelhead.contrib.browser.view import View, read_view
from levelhead.errors import first_line

if TYPE_CHECKING:
    from playwright.async_api import Frame, Page

T = TypeVar("T")

SETTLE_MS = 500
"""Page time that passes after an action: long enough for menus to unfold and suggestions to come up."""

_PARKED = (490.0, 310.0)
_LOAD_TIMEOUT = 60.0
_OVERSHOOT = 6.0
_DRAG_STRIDE = 9.0
_SCRIPTS = ("clock.js", "look.js", "act.js")


@cache
def init_script() -> str:
    """Return what runs in every page before its own scripts."""
    folder = files("levelhead.contrib.browser") / "js"
    return "\n".join((folder / name).read_text() for name in _SCRIPTS)


class Tab:
    """A Playwright page with our scripts in it.

    Every method that talks to the page raises :class:`TabLostError` when the page does not answer.

    Attributes:
        page: The Playwright page behind this tab.
        loaded: Name of the MiniWoB++ page that it shows.
    """

    def __init__(self, page: Page, timeout: float) -> None:
        self.loaded: str | None = None
        self.page = page
        self._timeout = timeout
        self._crashed = False
        self._astray = False
        self._mouse_moved = False
        page.on("crash", self._on_crash)
        page.on("popup", self._on_popup)
        page.on("framenavigated", self._on_navigated)

    async def load(self, name: str) -> None:
        """Open a MiniWoB++ page, unless it is open already and can be used again."""
        if self.loaded == name and not self._astray and name not in CARRIES_STATE:
            return
        self.loaded = None
        try:
            await self._ask(self.page.goto(page_url(name)), max(self._timeout, _LOAD_TIMEOUT))
            await self._evaluate("images => __levelhead.prepare(images)", list(page_images(name)))
        except PlaywrightError as error:
            raise TabLostError("page-broken", f"{name} does not load: {first_line(error)[:200]}") from error
        self._astray = False
        self.loaded = name

    async def reset(self, seed: int) -> View:
        """Start the episode of a seed.  The same seed gives the same goal and page, whatever was there before."""
        if self._mouse_moved:
            await self._ask(self.page.mouse.move(*_PARKED))
            self._mouse_moved = False
        try:
            raw = await self._evaluate("([seed, ms]) => __levelhead.reset(seed, ms)", [seed, SETTLE_MS])
        except PlaywrightError as error:
            raise TabLostError("page-broken", f"{self.loaded}, seed {seed}: {first_line(error)[:200]}") from error
        return read_view(raw)

    async def perform(self, action: Action) -> View:
        """Take an action, let page time pass, and look.

        Raises:
            ActionError: The page cannot take the action; time has not passed.
        """
        try:
            await self._perform(action)
            return await self._look(SETTLE_MS)
        except PlaywrightError as error:
            # The action has led the page away, and its script context with it.
            if self._astray or "context was destroyed" in str(error) or "navigat" in str(error):
                self._astray = True
                return View(stray=True)
            raise TabLostError("page-broken", f"{self.loaded}: {first_line(error)[:200]}") from error

    async def look(self) -> View:
        """See the page as it is."""
        return await self._look(0)

    async def close(self) -> None:
        """Close the page; a hung one is left to the browser."""
        with contextlib.suppress(PlaywrightError, TimeoutError):
            await asyncio.wait_for(self.page.context.close(), self._timeout)

    async def _look(self, ms: int) -> View:
        view = read_view(await self._evaluate("ms => __levelhead.settle(ms)", ms))
        self._astray |= view.stray
        return View(stray=True) if self._astray else view

    async def _perform(self, action: Action) -> None:
        match action.verb:
            case "click":
                x, y = await self._point(action.ref)
                self._mouse_moved = True
                await self._ask(self.page.mouse.click(x, y))
            case "fill" | "type":
                await self._enter(action)
            case "press":
                if action.ref is not None:
                    await self._call("focus", action.ref)
                await self._ask(self.page.keyboard.press(action.text))
            case "select":
                await self._call("choose", action.ref, action.text)
            case "focus":
                await self._call("focus", action.ref)
            case "hover":
                x, y = await self._point(action.ref)
                self._mouse_moved = True
                await self._ask(self.page.mouse.move(x, y))
            case "scroll":
                await self._call("scroll", action.ref, action.text)
            case "drag":
                await self._drag(action)
            case "noop":
                pass

    async def _enter(self, action: Action) -> None:
        replace = action.verb == "fill"
        answer = await self._call("enter", action.ref, action.text, replace)
        if answer["set"]:
            return
        if not replace:
            await self._ask(self.page.keyboard.type(action.text))
        elif action.text:
            await self._ask(self.page.keyboard.insert_text(action.text))
        else:
            await self._ask(self.page.keyboard.press("Delete"))

    async def _drag(self, action: Action) -> None:
        start = await self._point(action.ref)
        if action.to is not None:
            end = await self._point(action.to)
            start = await self._point(action.ref)
        else:
            right, down = action.offset or (0, 0)
            end = (start[0] + right, start[1] + down)
        mouse = self.page.mouse
        self._mouse_moved = True
        await self._ask(mouse.move(*start))
        await self._ask(mouse.down())
        # Draggable things start to follow only after a few pixels, make room only for what goes past their middle, and
        # see no half of a row that a stride leaps over.
        if action.to is not None:
            length = math.dist(start, end) or 1.0
            end = (
                end[0] + _OVERSHOOT * (end[0] - start[0]) / length,
                end[1] + _OVERSHOOT * (end[1] - start[1]) / length,
            )
        steps = max(6, math.ceil(math.dist(start, end) / _DRAG_STRIDE))
        for part in range(1, steps + 1):
            share = part / steps
            await self._ask(mouse.move(*(a + share * (b - a) for a, b in zip(start, end, strict=True))))
            # The browser merges the moves of one frame, and the page would see a leap over what lies between.
            await self._evaluate("() => __levelhead.painted()")
        await self._ask(mouse.up())

    async def _point(self, ref: int | None) -> tuple[float, float]:
        answer = await self._call("point", ref)
        return answer["x"], answer["y"]

    async def _call(self, name: str, *arguments: object) -> dict[str, Any]:
        answer: dict[str, Any] = await self._evaluate(f"a => __levelhead.{name}(...a)", list(arguments))
        if answer.get("error"):
            raise ActionError(answer["error"])
        return answer

    async def _evaluate(self, script: str, argument: object = None) -> Any:
        return await self._ask(self.page.evaluate(script, argument))

    async def _ask(self, answer: Awaitable[T], timeout: float | None = None) -> T:
        seconds = timeout or self._timeout
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError as error:
            raise TabLostError("page-hung", f"{self.loaded} did not answer for {seconds:g} s") from error
        except PlaywrightError as error:
            if self._crashed or self.page.is_closed() or "closed" in str(error) or "crashed" in str(error):
                raise TabLostError("page-lost", f"{self.loaded}: {first_line(error)[:200]}") from error
            raise

    def _on_crash(self, _: Page) -> None:
        self._crashed = True

    def _on_navigated(self, frame: Frame) -> None:
        if frame == self.page.main_frame and self.loaded is not None:
            self._astray |= frame.url.partition("#")[0] != page_url(self.loaded)

    def _on_popup(self, popup: Page) -> None:
        self._closing = asyncio.ensure_future(popup.close())
