from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from levelhead.contrib.browser.task import BrowserTask
from levelhead.contrib.browser.view import SYSTEM_PROMPT
from levelhead.errors import InputError
from levelhead.recipe.environments import Browser
from levelhead.records import Rollout, Score
from levelhead.tasks.base import Task
from levelhead.tasks.registry import make_task


def make(**keys: object) -> BrowserTask:
    return BrowserTask(Browser.model_validate({"kind": "browser", **keys}))


def test_the_registry_makes_it_and_it_keeps_its_protocols() -> None:
    task = make_task(Browser(kind="browser"))
    assert isinstance(task, BrowserTask)
    assert isinstance(task, Task)
    assert task.demonstrates
    assert task.has_baselines
    assert task.concurrency
    assert task.name == "browser"


def test_the_same_seed_gives_the_same_prompts_and_another_seed_others() -> None:
    first, again = (list(make(items=50).prompts("train", 7)) for _ in range(2))
    assert first == again
    assert [p.id for p in first] != [p.id for p in make(items=50).prompts("train", 8)]


def test_train_and_eval_share_no_page_and_seed() -> None:
    task = make(items=200, eval_fraction=0.2)
    train, held_out = ({p.id for p in task.prompts(split, 0)} for split in ("train", "eval"))
    assert not train & held_out
    assert len(train) + len(held_out) == 6 * 200
    assert 0.1 < len(held_out) / 1200 < 0.3
    # A further seed of the run moves nothing to the other side.
    assert held_out == {p.id for p in task.prompts("eval", 1)}


def test_every_page_has_held_out_seeds() -> None:
    pages = Counter(p.facts["task"] for p in make(items=10).prompts("eval", 0))
    assert set(pages) == set(Browser(kind="browser").weights)


def test_pages_come_by_weight() -> None:
    task = make(tasks={"click-test": 3, "click-link": 1}, items=1000)
    pages = Counter(p.facts["task"] for p in islice(task.prompts("train", 0), 400))
    assert 0.68 < pages["click-test"] / 400 < 0.82


def test_a_prompt_names_page_and_seed_and_begins_as_every_turn_does() -> None:
    prompt = make().prompt("click-link", 12)
    assert prompt.id == "click-link/12"
    assert prompt.facts == {"task": "click-link", "seed": 12}
    assert prompt.messages[0] == {"role": "system", "content": SYSTEM_PROMPT}


def test_a_limit_of_items_holds_over_both_sides() -> None:
    task = make(items=100, limit=20)
    assert sum(1 for split in ("train", "eval") for _ in task.prompts(split, 0)) == 20


def test_the_step_limit_is_the_pages_unless_the_recipe_sets_one() -> None:
    prompt = make().prompt("click-test", 0)
    assert make().episode(prompt).step_limit == 2
    assert make(step_limit=7).episode(prompt).step_limit == 7
    assert make(step_limit=7, step_limits={"click-test": 3}).episode(prompt).step_limit == 3


@pytest.mark.parametrize("keys", [{"tasks": ["click-tst"]}, {"step_limits": {"click-tst": 3}}])
def test_an_unknown_page_is_bad_input(keys: dict[str, object]) -> None:
    with pytest.raises(InputError, match="did you mean click-test"):
        make(**keys)


def test_the_summary_tells_pages_apart() -> None:
    task = make()
    scores = [("click-test", 1.0), ("click-test", 0.0), ("enter-text", 1.0)]
    results = [
        (
            task.prompt(page, seed),
            Rollout("", (), Score(success, {"success": success, "partial": success}, success == 1, {"steps": 2})),
        )
        for seed, (page, success) in enumerate(scores)
    ]
    summary = task.summarize(results)
    assert summary["click-test/success"] == 0.5
    assert summary["enter-text/success"] == 1
    assert summary["success"] == pytest.approx(2 / 3)
    assert summary["valid"] == pytest.approx(2 / 3)
    assert summary["click-test/steps"] == 2
    assert task.summarize([]) == {}
