"""No item twice in an epoch, and none that is held out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from levelhead.records import Event, Prompt, Score
from levelhead.tasks.base import SingleTurnTask
from levelhead.training.collect import Collected
from levelhead.training.curriculum import LearnabilityStream
from levelhead.training.items import HeldOutItems, RepeatedItems, overlap
from levelhead.training.stream import PromptStream


class Pages(SingleTurnTask):
    """A task of numbered prompts."""

    def __init__(self, name: str = "one", n: int = 7, held: tuple[int, ...] = (100, 101)) -> None:
        self.name, self.n, self.held = name, n, held

    def prompts(self, split: str, seed: int) -> Iterator[Prompt]:
        numbers = range(self.n) if split == "train" else self.held
        for i in sorted(numbers, key=lambda i: (i * (seed % 1009) + seed) % 13):
            yield Prompt(f"{split}-{i}", self.name, ({"role": "user", "content": f"what is {i}?"},))

    def score(self, prompt: Prompt, text: str) -> Score:
        return Score(0.0)


TASKS: Any = {"one": Pages("one", 7), "two": Pages("two", 5)}


def stream() -> PromptStream:
    return PromptStream(list(TASKS.values()), [2.0, 1.0], seed=3)


def codes(events: Iterable[Event]) -> list[str]:
    return [event.code for event in events]


def look(observer: HeldOutItems | RepeatedItems, prompts: list[Prompt]) -> list[Event]:
    """What an observer reports of a step that was sampled from these prompts."""
    return list(observer.sampled(1, Collected([], prompts=prompts)))


def test_epochs_of_the_real_stream_hold_each_item_once() -> None:
    epochs, prompts = RepeatedItems(TASKS), stream()
    for _ in range(20):
        assert codes(look(epochs, prompts.take(4))) == []


def test_epochs_go_on_over_a_resumption() -> None:
    first, prompts = RepeatedItems(TASKS), stream()
    look(first, prompts.take(9))
    second, later = RepeatedItems(TASKS), stream()
    second.load_state_dict(first.state_dict())
    later.load_state_dict(prompts.state_dict())
    for _ in range(10):
        assert codes(look(second, later.take(3))) == []


def broken_resumption(change: Any) -> list[str]:
    first, prompts = RepeatedItems(TASKS), stream()
    look(first, prompts.take(9))
    second, later = RepeatedItems(TASKS), stream()
    second.load_state_dict(first.state_dict())
    state = prompts.state_dict()
    for position in state.values():
        change(position)
    later.load_state_dict(state)
    return codes(look(second, later.take(6)))


@pytest.mark.parametrize(
    "change",
    [
        lambda position: position.update(offset=0),
        lambda position: position.update(offset=position["offset"] - 1),
        lambda position: position.update(epoch=position["epoch"] + 1),
    ],
)
def test_a_stream_that_goes_on_elsewhere_repeats_items(change: Any) -> None:
    assert "item-repeated" in broken_resumption(change)


def test_a_stream_that_draws_with_replacement_repeats_items() -> None:
    epochs = RepeatedItems(TASKS)
    prompts = list(TASKS["one"].prompts("train", 0))
    assert codes(look(epochs, [prompts[0], prompts[1], prompts[0]])) == ["item-repeated"]


class Fixed(Pages):
    """A task whose order does not depend on the seed."""

    def prompts(self, split: str, seed: int) -> Iterator[Prompt]:
        return super().prompts(split, 0)


def epochs_of(task: Pages, seeds: tuple[int, ...]) -> list[str]:
    """What is said of epochs whose orders have these seeds."""
    epochs = RepeatedItems({"one": task})
    return [code for seed in seeds for code in codes(look(epochs, list(task.prompts("train", seed))))]


def test_an_epoch_in_the_order_of_the_one_before_is_told_of() -> None:
    assert epochs_of(Pages(n=30), (3, 4, 5)) == []
    assert epochs_of(Pages(n=30), (3, 4, 4)) == ["order-repeated"]


def test_a_task_with_one_order_and_one_too_small_to_tell_are_left_alone() -> None:
    assert epochs_of(Fixed(n=30), (3, 4, 5)) == []
    assert epochs_of(Pages(n=7), (4, 4)) == []


@pytest.mark.parametrize("ids", [["eval-100"], ["train-100"], ["other"]])
def test_a_held_out_item_is_known_whatever_it_is_called(ids: list[str]) -> None:
    held = HeldOutItems(TASKS)
    asked = [Prompt(name, "one", ({"role": "user", "content": "what is 100?"},)) for name in ids]
    assert codes(look(held, asked)) == ["held-out-trained"]
    assert codes(look(held, TASKS["one"].prompts("train", 0))) == []  # type: ignore[arg-type]


def test_prompts_of_environments_are_told_apart_by_their_seed() -> None:
    def page(seed: int) -> Prompt:
        return Prompt(str(seed), "web", ({"role": "user", "content": "goal"},), facts={"task": "click", "seed": seed})

    held = HeldOutItems({})
    held._read, held._tasks = True, {"web": TASKS["one"]}
    held.hold([page(1)])
    assert codes(look(held, [page(2)])) == []
    assert codes(look(held, [page(1)])) == ["held-out-trained"]


def test_overlap_goes_by_content() -> None:
    assert overlap(Pages(held=(100, 101))) == ([], 2, 7, 0)
    same, held, items, again = overlap(Pages(held=(100, 3, 5)))
    assert (sorted(same), held, items, again) == (["eval-3", "eval-5"], 3, 7, 0)


@pytest.mark.parametrize("n", [1, 3, 8, 30])
def test_a_look_ahead_changes_nothing_and_shows_what_comes(n: int) -> None:
    prompts, other = stream(), stream()
    for _ in range(6):
        shown, before = prompts.peek(n), prompts.state_dict()
        assert shown == prompts.peek(n)
        assert prompts.state_dict() == before
        assert shown[:2] == prompts.take(n)[:2] == other.take(n)[:2]


def test_a_curriculum_can_be_looked_ahead_in() -> None:
    from levelhead.recipe.training import Learnability

    prompts = LearnabilityStream(list(TASKS.values()), [1.0, 1.0], 3, Learnability(kind="learnability"))
    assert prompts.peek(4) == prompts.peek(4) == prompts.take(4)
