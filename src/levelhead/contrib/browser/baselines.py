"""What a policy that does not read a page would get: the best fixed script of each page, and random actions.

A script is chosen for each page by itself, since the goal's first words give the page away.  It is chosen on training
seeds and scored on others, so that the choice does not flatter it.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import fmean
from typing import TypeVar

from levelhead.contrib.browser.actions import Action
from levelhead.contrib.browser.episode import BrowserEpisode
from levelhead.contrib.browser.oracles.find import text_fields, with_role
from levelhead.contrib.browser.view import Element, View
from levelhead.records import Prompt
from levelhead.tasks.base import Baseline, EpisodeLostError
from levelhead.waiting import all_or_none

Script = Callable[[View, int], Action | None]
"""Page and step (from 1) to the action to take; ``None`` where the script has nothing to do, and gives up."""


def click_number(number: int) -> Script:
    """Return the script that always clicks the element of one number."""

    def script(view: View, _: int) -> Action | None:
        return Action("click", number) if number <= len(view.elements) else None

    return script


def last_button(view: View, _: int) -> Action | None:
    """Click the last button, which is the one that submits."""
    return _click(with_role(view, "button")[-1:])


def focus_field(view: View, _: int) -> Action | None:
    """Focus the first text field."""
    fields = text_fields(view)
    return Action("focus", fields[0].ref) if fields else None


SCRIPTS: Mapping[str, Script] = {
    **{f"click({number})": click_number(number) for number in range(1, 5)},
    "click the first button": lambda view, _: _click(with_role(view, "button")[:1]),
    "click the last button": last_button,
    "click the last element": lambda view, _: _click(view.elements[-1:]),
    "click each element in turn": lambda view, step: click_number(step)(view, step),
    "focus the first field": focus_field,
    "focus the first field, click the last button": lambda view, step: (
        focus_field(view, step) if step == 1 else last_button(view, step)
    ),
    "press('Enter')": lambda _view, _step: Action("press", None, "Enter"),
}
"""Every script by what it does; of equally good ones the first is preferred."""


def random_script(seed: str) -> Script:
    """Return a script that takes a random action that the page can take, another one each step.

    First a verb is drawn evenly from those that act on what is there (click, focus, fill, select, press), then what it
    needs: an element or an option of a list evenly, the text for a field evenly from the words of the goal.

    Args:
        seed: Fixes the draws.
    """
    draw = random.Random(seed)

    def script(view: View, _: int) -> Action:
        acts: list[Callable[[], Action]] = [lambda: Action("press", None, "Enter")]
        elements, fields = view.elements, text_fields(view)
        offers = [(element.ref, option) for element in elements for option in element.options]
        if elements:
            acts.append(lambda: Action("click", draw.choice(elements).ref))
            acts.append(lambda: Action("focus", draw.choice(elements).ref))
        if fields:
            words = re.findall(r"\w+", view.goal) or [""]
            acts.append(lambda: Action("fill", draw.choice(fields).ref, draw.choice(words)))
        if offers:
            acts.append(lambda: Action("select", *draw.choice(offers)))
        return draw.choice(acts)()

    return script


def _click(elements: Sequence[Element]) -> Action | None:
    return Action("click", elements[0].ref) if elements else None


T = TypeVar("T")
Trail = list[tuple[View, Action]]
"""Each page of an episode and what was done to it."""

TRIED = 3
"""Training seeds of a page that every script is tried on."""
TRIED_AGAIN = 3
"""Further ones for the best scripts, where the first have not settled it."""
LEFT = 5
"""Scripts that are tried on those."""
MOST_PAGES = 24
"""Pages beyond which looking for the best script of each would take minutes."""
MOST_PROMPTS = 512
"""Prompts beyond which playing them all would."""
PERFECT = 1.0
"""What an episode that reaches its goal scores."""
RANDOM = "random valid actions"

_ATTEMPTS = 3

Outcomes = dict[tuple[Action, ...], View | float]
"""What actions, from the start, have led to: a page that waits for the next one, or the score of the episode."""


async def unbroken(play: Callable[[], Awaitable[T]]) -> T:
    """Play an episode, and again where the browser broke under it.

    Raises:
        EpisodeLostError: It broke several times in a row.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return await play()
        except EpisodeLostError:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


class ScriptedBaselines:
    """Plays scripts in the browser, and remembers which is the best one of each page.

    Args:
        trials: Training prompts of each page, at least one, of which ``TRIED + TRIED_AGAIN`` are used.
        start: Starts an episode.
        live: Episodes that can be live at once.
    """

    def __init__(
        self, trials: Mapping[str, Sequence[Prompt]], start: Callable[[Prompt], BrowserEpisode], live: int
    ) -> None:
        self.trials = {page: list(prompts[: TRIED + TRIED_AGAIN]) for page, prompts in trials.items()}
        self._start = start
        self._lanes = max(1, live // max(len(trials), 1))
        self._best: Mapping[str, str] = {}

    async def baselines(self, prompts: int) -> list[Baseline]:
        """Return the best script of each page, and random actions; nothing where so many prompts cost too much."""
        if len(self.trials) > MOST_PAGES or prompts > MOST_PROMPTS:
            return []
        try:
            best = await self.best_scripts()
        except EpisodeLostError:
            return []
        name = "; ".join(f"{page}: {script}" for page, script in best.items())
        fixed = Baseline(name, lambda prompts: self._play(prompts, lambda prompt: SCRIPTS[best[_page(prompt)]]))
        aimless = Baseline(
            RANDOM, lambda prompts: self._play(prompts, lambda prompt: random_script(f"random/{prompt.id}"))
        )
        return [fixed, aimless]

    async def best_scripts(self) -> Mapping[str, str]:
        """Return the script that does best on the training seeds of each page.

        Raises:
            EpisodeLostError: The browser broke, several times in a row.
        """
        if not self._best:
            names = await all_or_none(self._choose(trials) for trials in self.trials.values())
            self._best = dict(zip(self.trials, names, strict=True))
        return self._best

    async def _choose(self, trials: Sequence[Prompt]) -> str:
        """Try every script on a few prompts of a page, and the best on some more where that has not settled it."""
        outcomes_by_prompt: dict[str, Outcomes] = {prompt.id: {} for prompt in trials}
        gate = asyncio.Semaphore(self._lanes)

        async def score(prompt: Prompt, name: str) -> float:
            async with gate:
                return await self._trial(prompt, SCRIPTS[name], outcomes_by_prompt[prompt.id])

        async def ranked(prompts: Sequence[Prompt], names: Sequence[str]) -> list[tuple[str, float]]:
            means: dict[str, float] = {}
            for name in names:
                means[name] = fmean(await all_or_none(score(prompt, name) for prompt in prompts))
                if means[name] == PERFECT:  # of equals the first one is chosen
                    break
            return sorted(means.items(), key=lambda pair: -pair[1])

        ranking = await ranked(trials[:TRIED], list(SCRIPTS))
        if 0 < ranking[0][1] < PERFECT:
            ranking = await ranked(trials, [name for name, _ in ranking[:LEFT]])
        return ranking[0][0]

    async def _play(self, prompts: Sequence[Prompt], script: Callable[[Prompt], Script]) -> tuple[float, ...]:
        gates = {page: asyncio.Semaphore(self._lanes) for page in self.trials}

        async def score(prompt: Prompt) -> float:
            # A page in few lanes: to show another one in its place costs a navigation.
            async with gates[_page(prompt)]:
                return await self._trial(prompt, script(prompt), {})

        return tuple(await all_or_none(map(score, prompts)))

    async def _trial(self, prompt: Prompt, script: Script, outcomes: Outcomes) -> float:
        """Score a script on a prompt, from what is known of the prompt where that is enough."""
        score = _recall(script, outcomes)
        return score if score is not None else await unbroken(lambda: self._act(prompt, script, outcomes))

    async def _act(self, prompt: Prompt, script: Script, outcomes: Outcomes) -> float:
        episode = self._start(prompt)
        trail: Trail = []
        try:
            while True:
                await episode.observe()
                outcomes[_actions(trail)] = episode.view
                action = _next(script, trail, episode.view)
                if action is None:
                    return 0.0
                trail.append((episode.view, action))
                step = await episode.act(str(action))
                if step.score is not None:
                    outcomes[_actions(trail)] = step.score.total
                    return step.score.total
        finally:
            await episode.close()


def _page(prompt: Prompt) -> str:
    return str(prompt.facts["task"])


def _actions(trail: Trail) -> tuple[Action, ...]:
    return tuple(action for _, action in trail)


def _next(script: Script, trail: Trail, view: View) -> Action | None:
    """Return the next action; ``None`` where the script gives up, or what it does has just changed nothing."""
    action = script(view, len(trail) + 1)
    return None if trail and trail[-1] == (view, action) else action


def _recall(script: Script, outcomes: Outcomes) -> float | None:
    """Return the score of a script by what is known, ``None`` where it does something new."""
    trail: Trail = []
    while True:
        state = outcomes.get(_actions(trail))
        if state is None or isinstance(state, float):
            return state
        action = _next(script, trail, state)
        if action is None:
            return 0.0
        trail.append((state, action))
