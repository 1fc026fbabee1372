"""An episode on a page: see, act, and be scored when the page says so or the step limit is reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from levelhead.contrib.browser.actions import Action, ActionError, parse_action
from levelhead.contrib.browser.pages import Report, TabLostError
from levelhead.contrib.browser.view import View, turn_messages
from levelhead.records import Message, Score
from levelhead.tasks.base import EpisodeLostError, Step

if TYPE_CHECKING:
    from levelhead.contrib.browser.host import Pool
    from levelhead.contrib.browser.tab import Tab

FULL_REWARD = 0.999
"""A raw reward of at least this is a success; pages give 1, and less only for work half done."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The rules of an episode.

    Attributes:
        page: Name of the MiniWoB++ page.
        seed: Fixes goal and page.
        step_limit: Most actions.
        observation_chars: Longest page text shown.
        partial_credit: Weight of the page's graded reward in the total.
    """

    page: str
    seed: int
    step_limit: int
    observation_chars: int = 1500
    partial_credit: float = 0.0


class BrowserEpisode:
    """One attempt at one page and seed.  It holds a browser page from the first look until it is done or closed.

    Args:
        terms: What is played.
        pool: Gives the pool of the running event loop.
        report: Told the code and message of what goes wrong.
    """

    def __init__(self, terms: Terms, pool: Callable[[], Pool], report: Report) -> None:
        self.terms = terms
        self.view = View()
        self.step = 1
        self.error = ""
        self._find_pool = pool
        self._report = report
        self._pool: Pool | None = None
        self._tab: Tab | None = None
        self._misread = 0
        self._refused = 0
        self._over = False

    async def observe(self) -> list[Message]:
        """Return the messages of this turn.

        Raises:
            EpisodeLostError: The page or the browser broke.
        """
        if self._over:
            raise RuntimeError("the episode is over")
        if self._tab is None:
            await self._start()
        return turn_messages(self.view, self.step, self.error, self.terms.observation_chars)

    async def act(self, text: str) -> Step:
        """Do what the policy wrote; an answer that is no action costs a step, and the next turn says why.

        Raises:
            EpisodeLostError: The page or the browser broke.
        """
        if self._tab is None:
            raise RuntimeError("observe comes before act")
        self.error = ""
        try:
            action = parse_action(text)
        except ActionError as error:
            self._misread += 1
            self.error = str(error)
        else:
            await self._perform(self._tab, action)
        taken, self.step = self.step, self.step + 1
        if not (self.view.done or self.view.stray or taken >= self.terms.step_limit):
            return Step(done=False)
        if self.view.stray:
            self._report("page-left", f"{self._what}, step {taken}: the policy's action led away from the page")
        self._over = True
        await self._let_go(fit=not self.view.stray)
        return Step(done=True, score=self._score(taken))

    async def close(self) -> None:
        """Give the browser page back."""
        self._over = True
        await self._let_go(fit=True)

    @property
    def _what(self) -> str:
        return f"{self.terms.page}, seed {self.terms.seed}"

    async def _start(self) -> None:
        self._pool = self._find_pool()
        try:
            self._tab = await self._pool.lend(self.terms.page)
            self.view = await self._tab.reset(self.terms.seed)
        except TabLostError as error:
            await self._lose(error)

    async def _perform(self, tab: Tab, action: Action) -> None:
        try:
            self.view = await tab.perform(action)
        except ActionError as error:
            self._refused += 1
            self.error = str(error)
        except TabLostError as error:
            await self._lose(error)

    async def _lose(self, error: TabLostError) -> NoReturn:
        self._over = True
        self._report(error.code, f"{self._what}, step {self.step}: {error}")
        await self._let_go(fit=False)
        raise EpisodeLostError(f"{self._what}: {error}") from error

    async def _let_go(self, *, fit: bool) -> None:
        tab, self._tab = self._tab, None
        if tab is not None and self._pool is not None:
            await self._pool.give_back(tab, fit=fit)

    def _score(self, steps: int) -> Score:
        raw = self.view.reward if self.view.done else 0.0
        success = float(raw >= FULL_REWARD)
        partial = min(max(raw, 0.0), 1.0)
        weight = self.terms.partial_credit
        return Score(
            total=(1 - weight) * success + weight * partial,
            parts={"success": success, "partial": partial},
            valid=self._misread == 0,
            info={
                "page": self.terms.page,
                "seed": self.terms.seed,
                "steps": steps,
                "raw_reward": raw,
                "reason": self.view.reason,
                "ended": "page" if self.view.done else "left" if self.view.stray else "step_limit",
                "unread": self._misread,
                "refused": self._refused,
            },
        )
