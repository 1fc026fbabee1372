from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from levelhead.contrib.browser import baselines
from levelhead.contrib.browser.baselines import RANDOM, ScriptedBaselines
from levelhead.contrib.browser.task import BrowserTask
from levelhead.contrib.browser.view import Element, Line, View
from levelhead.records import Prompt, Score
from levelhead.tasks.base import EpisodeLostError, Step

BUTTONS = View("Click the right one.", (Line(0, tuple(Element(n, "button", str(n)) for n in (1, 2, 3))),))
LIMIT = 3


class Buttons:
    """Three buttons, of which clicking the right one succeeds; another one ends the episode, or changes nothing."""

    def __init__(self, page: str, right: int, log: list[str], *, patient: bool) -> None:
        self.page, self.view = page, BUTTONS
        self.closed = False
        self._right, self._log, self._left, self._patient = right, log, LIMIT, patient

    async def observe(self) -> None:
        await asyncio.sleep(0)

    async def act(self, text: str) -> Step:
        self._log.append(text)
        self._left -= 1
        right = text == f"click({self._right})"
        over = not self._left or (text.startswith("click") and not self._patient)
        return Step(True, Score(float(right))) if right or over else Step(False)

    async def close(self) -> None:
        self.closed = True


class House:
    """Pages by name, each with the right button of a seed."""

    def __init__(self, *, patient: bool = False, **right: Callable[[int], int]) -> None:
        self.right, self.patient = right, patient
        self.episodes: list[Buttons] = []
        self.played: dict[str, list[list[str]]] = defaultdict(list)

    def start(self, prompt: Prompt) -> Any:
        log: list[str] = []
        self.played[prompt.id].append(log)
        page = str(prompt.facts["task"])
        right = self.right[page](int(prompt.facts["seed"]))
        self.episodes.append(Buttons(page, right, log, patient=self.patient))
        return self.episodes[-1]

    def scripts(self, seeds: int = 9, live: int = 2) -> ScriptedBaselines:
        trials = {page: [prompt_of(page, seed) for seed in range(seeds)] for page in self.right}
        return ScriptedBaselines(trials, self.start, live)


def prompt_of(page: str, seed: int) -> Prompt:
    return Prompt(f"{page}/{seed}", "browser", (), facts={"task": page, "seed": seed})


def held_out(*pages: str, n: int = 4) -> list[Prompt]:
    return [prompt_of(page, seed) for seed in range(100, 100 + n) for page in pages]


async def scored(scripts: ScriptedBaselines, prompts: Sequence[Prompt]) -> list[tuple[str, list[float]]]:
    """Names and scores of the baselines."""
    return [(line.answer, list(await line.play(prompts))) for line in await scripts.baselines(len(prompts))]


@pytest.mark.asyncio
async def test_each_page_has_its_own_best_script_scored_on_the_prompts_in_their_order() -> None:
    house = House(first=lambda _: 1, second=lambda _: 2, odd=lambda seed: 1 + seed % 2)
    (name, fixed), _ = await scored(house.scripts(), held_out("first", "second", "odd"))
    assert name == "first: click(1); second: click(2); odd: click(1)"
    assert fixed == [1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0]


@pytest.mark.asyncio
async def test_the_choice_never_sees_the_prompts_that_are_scored() -> None:
    # On the training seeds the third button is right; on those held out the first one.
    house = House(page=lambda seed: 3 if seed < 100 else 1)
    scripts = house.scripts()
    assert await scripts.best_scripts() == {"page": "click(3)"}
    assert set(house.played) == {f"page/{seed}" for seed in range(3)}
    (_, fixed), _ = await scored(scripts, held_out("page"))
    assert fixed == [0, 0, 0, 0]


@pytest.mark.asyncio
async def test_where_few_seeds_leave_it_open_the_best_are_tried_on_more() -> None:
    # By the first three seeds click(1) is best, by all six click(2).
    house = House(page=lambda seed: 1 if seed < 2 else 2)
    assert await house.scripts().best_scripts() == {"page": "click(2)"}
    assert set(house.played) == {f"page/{seed}" for seed in range(6)}


@pytest.mark.asyncio
async def test_what_has_been_played_is_not_played_again() -> None:
    house = House(page=lambda seed: 2 if seed == 0 else 4, patient=True)
    scripts = house.scripts()
    await scripts.best_scripts()
    # What changes nothing is not done twice.  The first button is also click(1), and the last one click(3).
    plays = [["click(1)"], ["click(2)"], ["click(3)"], ["click(1)", "click(2)"], ["press('Enter')"]]
    assert sorted(house.played["page/0"]) == sorted(plays)
    again = sum(map(len, house.played.values()))
    await scripts.best_scripts()
    assert sum(map(len, house.played.values())) == again


@pytest.mark.asyncio
async def test_once_a_script_never_fails_no_other_is_tried() -> None:
    house = House(page=lambda _: 2)
    assert await house.scripts().best_scripts() == {"page": "click(2)"}
    assert house.played == {f"page/{seed}": [["click(1)"], ["click(2)"]] for seed in range(3)}


@pytest.mark.asyncio
async def test_random_actions_depend_on_the_prompt_alone() -> None:
    prompts = held_out("page", n=12)
    scripts = House(page=lambda _: 2).scripts()
    _, (name, once) = await scored(scripts, prompts)
    _, (_, again) = await scored(House(page=lambda _: 2).scripts(live=7), prompts[::-1])
    assert name == RANDOM
    assert once == again[::-1]
    assert set(once) == {0, 1}


@pytest.mark.asyncio
async def test_a_page_is_played_in_few_lanes() -> None:
    house = House(first=lambda _: 1, second=lambda _: 1)
    most: dict[str, int] = defaultdict(int)

    def start(prompt: Prompt) -> Any:
        page = str(prompt.facts["task"])
        live = sum(episode.page == page and not episode.closed for episode in house.episodes)
        most[page] = max(most[page], live + 1)
        return house.start(prompt)

    trials = {page: [prompt_of(page, seed) for seed in range(9)] for page in ("first", "second")}
    await scored(ScriptedBaselines(trials, start, 5), held_out("first", "second", n=10))
    assert most == {"first": 2, "second": 2}
    assert all(episode.closed for episode in house.episodes)


@pytest.mark.asyncio
async def test_a_broken_page_is_played_again_and_a_browser_that_stays_broken_gives_no_baseline() -> None:
    house = House(page=lambda _: 1)
    breaks = itertools.count()

    def start(prompt: Prompt, lasting: Sequence[int]) -> Any:
        if next(breaks) in lasting:
            raise EpisodeLostError("gone")
        return house.start(prompt)

    trials = {"page": [prompt_of("page", seed) for seed in range(3)]}
    (_, fixed), _ = await scored(ScriptedBaselines(trials, lambda p: start(p, (0, 1)), 1), held_out("page"))
    assert fixed == [1, 1, 1, 1]
    assert await ScriptedBaselines(trials, lambda p: start(p, range(10**6)), 1).baselines(4) == []


@pytest.mark.asyncio
async def test_nothing_is_played_where_that_would_take_minutes() -> None:
    house = House(**{f"p{n}": lambda _: 1 for n in range(baselines.MOST_PAGES + 1)})
    assert await house.scripts(1).baselines(4) == []
    house = House(page=lambda _: 1)
    assert await house.scripts(1).baselines(baselines.MOST_PROMPTS + 1) == []
    assert house.episodes == []


def test_scripts_are_tried_on_training_seeds_only() -> None:
    from levelhead.recipe.environments import Browser

    task = BrowserTask(Browser(kind="browser", items=40))
    train = {prompt.id for prompt in task.prompts("train", 3)}
    assert {prompt.id for trials in task.scripted.trials.values() for prompt in trials} <= train
    assert all(len(trials) == 6 for trials in task.scripted.trials.values())
