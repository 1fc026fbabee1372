"""The browser task: MiniWoB++ pages by weight, and demonstrations made in the real page."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from levelhead.contrib.browser.actions import ActionError, parse_action
from levelhead.contrib.browser.baselines import ScriptedBaselines, unbroken
from levelhead.contrib.browser.episode import BrowserEpisode
from levelhead.contrib.browser.oracles import ORACLES
from levelhead.contrib.browser.pages import Report, check_pages
from levelhead.contrib.browser.view import SYSTEM_PROMPT, View
from levelhead.errors import InputError
from levelhead.installation import install_command
from levelhead.recipe.environments import Browser
from levelhead.records import ChatMessage, Prompt, Score
from levelhead.tasks.base import Baseline
from levelhead.tasks.environment import EnvironmentTask

if TYPE_CHECKING:
    from levelhead.contrib.browser.host import Pool

Turns = list[tuple[list[ChatMessage], str]]
"""The messages and the answer of each turn of an episode."""


class BrowserTask(EnvironmentTask):
    """MiniWoB++ pages in a real browser.

    It demonstrates by acting and plays its own baselines.  The browser starts with the first episode, on the event
    loop that runs it.

    Args:
        section: The recipe's section.

    Raises:
        InputError: A page does not exist, or one of the packages ``miniwob`` and ``playwright`` is missing.
    """

    severity: ClassVar = {"browser-started": "info", "page-left": "info"}
    stratum: ClassVar = "page"

    def __init__(self, section: Browser) -> None:
        if find_spec("playwright") is None:
            raise InputError(f"the browser task needs the package playwright: {install_command('browser')}")
        check_pages(section.weights)
        check_pages(section.step_limits, "tasks[].step_limits")
        super().__init__(section, SYSTEM_PROMPT)
        self.section = section
        self._pool: Pool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        trials = {
            page: [self.prompt(*key) for key in self._sides["train"] if key[0] == page] for page in section.weights
        }
        self.scripted = ScriptedBaselines(
            trials, lambda prompt: self._episode(prompt, self._report_faults), section.pages
        )

    @property
    def concurrency(self) -> int:
        """Most episodes that can be live at once."""
        return self.section.pages

    def canonical_action(self, text: str) -> str:
        """Return one turn's action as the grammar prints it; what is no action is its own first line."""
        try:
            return str(parse_action(text))
        except ActionError:
            return super().canonical_action(text)

    def episode(self, prompt: Prompt) -> BrowserEpisode:
        """Start an attempt at a prompt."""
        return self._episode(prompt, self.report)

    async def open(self, prompt: Prompt) -> BrowserEpisode:
        """Start an attempt at a prompt and see its page.

        Raises:
            EpisodeLostError: The page or the browser broke.
        """
        episode = self.episode(prompt)
        await episode.observe()
        return episode

    async def baselines(self, prompts: int) -> Sequence[Baseline]:
        """Return the fixed scripts that are best on the training seeds of each page, and random actions."""
        return await self.scripted.baselines(prompts)

    async def oracle_action(self, prompt: Prompt, view: View, step: int) -> str | None:
        """Return the perfect answer to what the page shows at a step.

        ``None`` where the page has no oracle, or the oracle does not know what to do.
        """
        oracle = ORACLES.get(str(prompt.facts["task"]))
        try:
            return None if oracle is None else str(oracle(view, step))
        except LookupError:
            return None

    async def demonstrate(self, prompt: Prompt) -> Turns:
        """Let the oracle play an episode; return its turns, or nothing where it has no oracle or did not succeed."""
        turns, score = await self.play_oracle(prompt)
        return turns if score is not None and score.parts["success"] == 1 else []

    async def play_oracle(self, prompt: Prompt) -> tuple[Turns, Score | None]:
        """Let the oracle play an episode; return its turns and score, ``None`` where the oracle gave up.

        Raises:
            EpisodeLostError: The page or the browser broke, several times in a row.
        """
        return await unbroken(lambda: self._play(prompt))

    def pool(self) -> Pool:
        """Return the running event loop's pool of pages; the browser starts when a page is lent."""
        loop = asyncio.get_running_loop()
        if self._pool is not None and self._loop is not loop:
            # The event loop has changed: the old browser cannot be spoken to from here, only ended.
            self._pool.kill()
            self._pool = None
        if self._pool is None:
            from levelhead.contrib.browser.host import Pool

            section = self.section
            timeout, executable = section.action_timeout, section.executable
            self._pool = Pool(section.pages, section.spare_pages, timeout, executable, self.report)
            self._loop = loop
        return self._pool

    async def close(self) -> None:
        """Close the browser, from the event loop it was used on."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    def _episode(self, prompt: Prompt, report: Report) -> BrowserEpisode:
        page, seed = str(prompt.facts["task"]), int(prompt.facts["seed"])
        return BrowserEpisode(self.section, page, seed, self.pool, report)

    def _report_faults(self, code: str, message: str) -> None:
        """Report what goes wrong in an episode that no policy plays; where a script strays to is no news."""
        if code != "page-left":
            self.report(code, message)

    async def _play(self, prompt: Prompt) -> tuple[Turns, Score | None]:
        turns: Turns = []
        episode = self.episode(prompt)
        try:
            while True:
                messages = await episode.observe()
                answer = await self.oracle_action(prompt, episode.view, episode.step)
                if answer is None:
                    return turns, None
                turns.append((messages, answer))
                step = await episode.act(answer)
                if step.done:
                    return turns, step.score
        finally:
            await episode.close()
