"""The browser task: pages by weight, seeds split into train and eval, and demonstrations made in the real page."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from statistics import fmean
from typing import TYPE_CHECKING

from levelhead.errors import InputError
from levelhead.recipe.tasks import Browser
from levelhead.records import Event, Message, Prompt, Rollout, Score, Severity
from levelhead.tasks.base import EpisodeLostError, Split
from levelhead.tasks.browser.episode import BrowserEpisode, Terms
from levelhead.tasks.browser.oracles import ORACLES
from levelhead.tasks.browser.pages import check_pages, step_limit
from levelhead.tasks.browser.view import SYSTEM_PROMPT, View
from levelhead.tasks.splits import in_seed_order, limit_sides, split_by_group

if TYPE_CHECKING:
    from levelhead.tasks.browser.pool import Pool

_SEVERITY: dict[str, Severity] = {"browser-started": "info", "page-left": "info"}


class BrowserTask:
    """MiniWoB++ pages in a real browser.

    An instance of :class:`levelhead.tasks.base.Task`, ``Demonstrator`` and ``Environment``.  The browser starts with
    the first episode, on the event loop that runs it.

    Args:
        section: The recipe's section.

    Raises:
        InputError: A page does not exist, or one of the packages ``miniwob`` and ``playwright`` is missing.
    """

    def __init__(self, section: Browser) -> None:
        if find_spec("playwright") is None:
            raise InputError("the browser task needs the package playwright: pip install 'levelhead[browser]'")
        self.section = section
        self._weights = section.weights
        check_pages(self._weights)
        check_pages(section.step_limits, "tasks[].step_limits")
        self._pool: Pool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._happened: list[tuple[str, str]] = []
        keys = [(page, seed) for page in self._weights for seed in range(section.items)]
        sides = split_by_group(keys, _key, section.eval_fraction, stratum=lambda key: key[0])
        self._sides = limit_sides(sides, section.limit, section.eval_fraction, _key)

    @property
    def name(self) -> str:
        """Name in metrics and reports."""
        return self.section.name or self.section.kind

    @property
    def concurrency(self) -> int:
        """Most episodes that can be live at once."""
        return self.section.pages

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        """Yield every (page, seed) of the split once; at any point the pages seen so far follow their weights."""
        waiting = {
            page: in_seed_order([key for key in self._sides[split] if key[0] == page], seed, self.name, split, page)
            for page in self._weights
        }
        draw = random.Random(f"{seed}/{self.name}/{split}/pages")
        while any(waiting.values()):
            pages = [page for page, keys in waiting.items() if keys]
            (page,) = draw.choices(pages, [self._weights[page] for page in pages])
            yield self.prompt(*waiting[page].pop())

    def oracle(self, prompt: Prompt) -> list[str] | None:  # noqa: ARG002
        """Return ``None``: what to do depends on what the page shows; see :meth:`demonstrate`."""
        return None

    def episode(self, prompt: Prompt) -> BrowserEpisode:
        """Start an attempt at a prompt."""
        page = str(prompt.facts["page"])
        limit = self.section.step_limits.get(page) or self.section.step_limit or step_limit(page)
        terms = Terms(
            page, int(prompt.facts["seed"]), limit, self.section.observation_chars, self.section.partial_credit
        )
        return BrowserEpisode(terms, self._running_pool, self._report)

    async def oracle_action(self, prompt: Prompt, view: View, step: int) -> str | None:
        """Return the perfect answer to what the page shows at a step.

        ``None`` where the page has no oracle, or the oracle does not know what to do.
        """
        oracle = ORACLES.get(str(prompt.facts["page"]))
        try:
            return None if oracle is None else str(oracle(view, step))
        except LookupError:
            return None

    async def demonstrate(self, prompt: Prompt) -> list[tuple[list[Message], str]]:
        """Let the oracle play an episode; return its turns, or nothing where it has no oracle or did not succeed."""
        turns, score = await self.play_oracle(prompt)
        return turns if score is not None and score.parts["success"] == 1 else []

    async def play_oracle(self, prompt: Prompt) -> tuple[list[tuple[list[Message], str]], Score | None]:
        """Let the oracle play an episode; return its turns and score, ``None`` where the oracle gave up.

        Raises:
            EpisodeLostError: The page or the browser broke, three times in a row.
        """
        for attempt in range(3):
            episode = self.episode(prompt)
            try:
                return await self._play(prompt, episode)
            except EpisodeLostError:
                if attempt == 2:
                    raise
            finally:
                await episode.close()
        raise AssertionError("unreachable")

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        """Return success, partial reward and steps by page, and the share of episodes without a misread action."""
        scores: dict[str, list[Score]] = defaultdict(list)
        for prompt, rollout in results:
            if rollout.score is not None:
                scores[str(prompt.facts["page"])].append(rollout.score)
        summary: dict[str, float] = {}
        for page, of_page in sorted(scores.items()):
            summary[f"{page}/success"] = fmean(score.parts["success"] for score in of_page)
            summary[f"{page}/partial"] = fmean(score.parts["partial"] for score in of_page)
            summary[f"{page}/steps"] = fmean(float(score.info["steps"]) for score in of_page)
        everything = [score for of_page in scores.values() for score in of_page]
        if everything:
            summary["success"] = fmean(score.parts["success"] for score in everything)
            summary["valid"] = fmean(float(score.valid) for score in everything)
        return summary

    def drain_events(self, step: int) -> list[Event]:
        """Return what happened to the browser and its pages since the last call, dated ``step``."""
        happened, self._happened = self._happened, []
        return [Event(step, code, _SEVERITY.get(code, "warning"), message) for code, message in happened]

    async def close(self) -> None:
        """Close the browser, from the event loop it was used on."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def _play(
        self, prompt: Prompt, episode: BrowserEpisode
    ) -> tuple[list[tuple[list[Message], str]], Score | None]:
        turns: list[tuple[list[Message], str]] = []
        while True:
            messages = await episode.observe()
            answer = await self.oracle_action(prompt, episode.view, episode.step)
            if answer is None:
                return turns, None
            turns.append((messages, answer))
            step = await episode.act(answer)
            if step.done:
                return turns, step.score

    def prompt(self, page: str, seed: int) -> Prompt:
        """Return the prompt of one page and seed; what the policy reads each turn comes from the episode."""
        messages: list[Message] = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": "The goal and the page follow when the episode starts."},
        ]
        return Prompt(f"{page}/{seed}", self.name, tuple(messages), facts={"page": page, "seed": seed})

    def _running_pool(self) -> Pool:
        loop = asyncio.get_running_loop()
        if self._pool is not None and self._loop is not loop:
            # The event loop has changed: the old browser cannot be spoken to from here, only ended.
            self._pool.kill()
            self._pool = None
        if self._pool is None:
            from levelhead.tasks.browser.pool import Pool

            section = self.section
            self._pool = Pool(
                section.pages, section.spare_pages, section.action_timeout, section.executable, self._report
            )
            self._loop = loop
        return self._pool

    def _report(self, code: str, message: str) -> None:
        self._happened.append((code, message))


def _key(key: tuple[str, int]) -> str:
    return f"{key[0]}/{key[1]}"
