"""An episode on a page: see, act, and be scored when the page says so or the step limit is reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from levelhead.contrib.browser.actions import ActionError, parse_action
from levelhead.contrib.browser.pages import Report, TabLostError, step_limit
from levelhead.contrib.browser.view import View, turn_messages
from levelhead.recipe.environments import Browser
from levelhead.records import ChatMessage, Score
from levelhead.tasks.environment import SeededEpisode

if TYPE_CHECKING:
    from levelhead.contrib.browser.host import Pool
    from levelhead.contrib.browser.tab import Tab

FULL_REWARD = 0.999
"""A raw reward of at least this is a success; pages give 1, and less only for work half done."""


class BrowserEpisode(SeededEpisode["Tab"]):
    """One attempt at one page and seed, in a browser page.

    Args:
        section: The recipe's section.
        page: Name of the MiniWoB++ page.
        seed: Fixes goal and page.
        pool: Gives the pool of the running event loop.
        report: Takes the code and message of what goes wrong.
    """

    faults = (TabLostError,)

    def __init__(self, section: Browser, page: str, seed: int, pool: Callable[[], Pool], report: Report) -> None:
        limit = section.step_limits.get(page) or section.step_limit or step_limit(page)
        super().__init__(page, seed, limit, report)
        self.view = View()
        self.error = ""
        self._section = section
        self._find_pool = pool
        self._pool: Pool | None = None
        self._misread = 0
        self._refused = 0

    @property
    def page_text(self) -> str:
        """The page as the policy sees it."""
        return self.view.render(self._section.observation_chars)

    async def _open(self) -> None:
        self._pool = self._find_pool()
        self.place = await self._pool.lend(self.name)
        self.view = await self.place.reset(self.seed)

    async def _give_back(self, place: Tab, *, fit: bool) -> None:
        assert self._pool is not None  # noqa: S101 - it has lent the page
        await self._pool.give_back(place, fit=fit)

    def _messages(self) -> list[ChatMessage]:
        return turn_messages(self.view, self.step, self.error, self._section.observation_chars)

    async def _perform(self, place: Tab, text: str) -> None:
        self.error = ""
        try:
            action = parse_action(text)
        except ActionError as error:
            self._misread += 1
            self.error = str(error)
            return
        try:
            self.view = await place.perform(action)
        except ActionError as error:
            self._refused += 1
            self.error = str(error)
        self._ended = "page" if self.view.done else "left" if self.view.stray else ""
        if self.view.stray:
            self._fit = False
            self._report("page-left", f"{self.where}: the policy's action led away from the page")

    def _fault(self, error: TabLostError) -> tuple[str, str]:
        return error.code, str(error)

    def _score(self, facts: Mapping[str, Any]) -> Score:
        raw = self.view.reward if self.view.done else 0.0
        success = float(raw >= FULL_REWARD)
        partial = min(max(raw, 0.0), 1.0)
        weight = self._section.partial_credit
        return Score(
            total=(1 - weight) * success + weight * partial,
            parts={"success": success, "partial": partial},
            valid=self._misread == 0,
            info={
                "page": self.name,
                **facts,
                "raw_reward": raw,
                "reason": self.view.reason,
                "unread": self._misread,
                "refused": self._refused,
            },
        )
