"""Groups drawn several steps ahead: the same numbers whatever the timing, none lost, none twice, none too old."""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from importance_by_hand import computed
from levelhead.api import Result, train
from levelhead.errors import InputError, RewardError
from levelhead.guard import LiveGuard
from levelhead.objective.losses import Correction
from levelhead.recipe.guard import Guard as Bounds
from levelhead.records import Change, CoefficientOverrides, Decision, Event, Prompt, StepRecord
from levelhead.training.collect import Collector
from levelhead.training.collected import Collected
from levelhead.training.episodes import Room, SharedPlaces
from levelhead.training.evaluator import Evaluator
from levelhead.training.group_queue import GroupQueue
from levelhead.training.optim import Updater
from levelhead.training.weight_copies import WeightCopies, WeightCopy
from night import by_night
from small_run import events, metrics, recipe, same_weights, steps

SMALL = {"sft": None, "eval__final_items": 1, "checkpoint__every": 0, "grpo__audit__first": 0, "grpo__steps": 6}
AGES = [0, 1, 2, 2, 2, 2]
GROUPS = 4


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    assert [thread.name for thread in left if thread.name.startswith("levelhead")] == []


def run(folder: Path, name: str, observers: Sequence[Any] = (), **changes: Any) -> Result:
    data = folder / name
    data.mkdir()
    return train(recipe(data, **{**SMALL, "grpo__async": 2, **changes}), out=data / "run", observers=observers)


Draw = Callable[[], Awaitable[Collected]]
"""Samples and scores the group that is due."""


def around_groups(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Draw, SharedPlaces, Prompt], Awaitable[Collected]]
) -> None:
    """Put something around the sampling of every group that is sampled ahead."""
    collect = Collector.collect

    async def changed(self: Collector, prompts: Sequence[Prompt], *args: Any) -> Collected:
        if self._shared is None:  # an evaluation
            return await collect(self, prompts, *args)
        return await change(lambda: collect(self, prompts, *args), self._shared, prompts[0])

    monkeypatch.setattr(Collector, "collect", changed)


def delay(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Make drawing and training take turns of random length."""
    rng, step = random.Random(seed), Updater.step

    async def slow_draw(draw: Draw, *_: Any) -> Collected:
        await asyncio.sleep(rng.random() * 0.1)
        result = await draw()
        await asyncio.sleep(rng.random() * 0.1)
        return result

    def slow_step(self: Updater) -> None:
        time.sleep(rng.random() * 0.1)
        step(self)

    around_groups(monkeypatch, slow_draw)
    monkeypatch.setattr(Updater, "step", slow_step)


def watch_steps(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[str]]:
    """Prompts of the groups that each step trains on, as it was handed them last."""
    handed: dict[int, list[str]] = {}
    draw = GroupQueue.next

    def watched(self: GroupQueue, step: int, *rest: Any) -> Collected:
        result = draw(self, step, *rest)
        handed[step] = [f"{group.prompt.task}/{group.prompt.id}" for group in result.groups]
        return result

    monkeypatch.setattr(GroupQueue, "next", watched)
    return handed


def trained_in_step(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> list[str]:
    """The prompts of a run that draws nothing ahead, in the order in which they are trained on."""
    order: list[str] = []
    draw = GroupQueue.next

    def watched(self: GroupQueue, *rest: Any) -> Collected:
        result = draw(self, *rest)
        order.extend(f"{group.prompt.task}/{group.prompt.id}" for group in result.groups)
        return result

    monkeypatch.setattr(GroupQueue, "next", watched)
    run(folder, "in-step", grpo__async=0, **changes)
    return order


def ages(result: Result, end: str = "max") -> list[float]:
    return [row[f"staleness/{end}"] for row in steps(result.folder, "grpo")]


@pytest.mark.parametrize("ahead", [pytest.param(1, marks=by_night), 2])
def test_timing_changes_no_number(tmp_path: Path, ahead: int) -> None:
    changes = {
        "grpo__async": ahead,
        "grpo__dynamic_sampling": 1,
        "eval__every": 2,
        "grpo__curriculum": {"kind": "learnability"},
    }
    results = []
    for seed in range(2):
        with pytest.MonkeyPatch.context() as patch:
            if seed:
                delay(patch, seed)
            results.append(run(tmp_path, str(seed), **changes))
    first, other = results
    assert metrics(other.folder) == metrics(first.folder)
    assert same_weights(other.model, first.model)


@pytest.mark.parametrize("most", [pytest.param(1, marks=by_night), 2])
def test_groups_are_as_old_as_the_step_says_and_their_prompts_those_of_a_run_in_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    handed = watch_steps(monkeypatch)
    ahead = run(tmp_path, "ahead", grpo__async=most)
    plain = run(tmp_path, "plain", grpo__async=0)
    rows, others = steps(ahead.folder, "grpo"), steps(plain.folder, "grpo")
    expected = [min(age, most) for age in AGES]
    assert ages(ahead) == ages(ahead, "mean") == expected
    assert [row["off_policy/mean"] for row in rows] == [2 * age for age in expected]  # two updates a step
    own = {name for name in rows[0] if name.startswith(("staleness/", "off_policy/"))}
    assert {k: v for k, v in rows[0].items() if k not in own} == others[0]
    assert not own & others[0].keys()
    assert len({prompt for step in (1, 2, 3) for prompt in handed[step]}) == 3 * GROUPS


@pytest.mark.parametrize("mode", get_args(Correction))
def test_importance_weights_lead_from_each_groups_weights_to_the_steps(tmp_path: Path, mode: str) -> None:
    loss = {"importance": mode, "importance_low": 0.8, "importance_high": 1.25}
    given = {"grpo__updates_per_batch": 1, "grpo__loss": loss, "grpo__steps": 4}
    with computed(mode, 0.8, 1.25) as pairs:
        rows = steps(run(tmp_path, "run", **given).folder, "grpo")
    assert rows[0]["sampling/importance_sampling_ratio/cut_mean"] == 0
    assert all(row["sampling/importance_sampling_ratio/cut_mean"] > 0 for row in rows[1:])
    assert [logged for _, logged in pairs] == pytest.approx([by_hand for by_hand, _ in pairs], abs=1e-5)
    assert all(abs(by_hand - 1) > 1e-4 for by_hand, _ in pairs[1:])


class Served(WeightCopies):
    """Copies of weights that claim to lie on servers: a step takes the groups that are finished first.

    Servers hold one version, so that a group's own cannot be read off what drew it.
    """

    def newest(self) -> WeightCopy:
        copy = super().newest()
        for other in self._copies:
            other.version = copy.version
        return copy

    @property
    def reproducible(self) -> bool:
        return False


def test_a_group_that_hangs_is_dropped_and_drawn_again_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levelhead.training.group_sampler.WeightCopies", Served)
    handed = watch_steps(monkeypatch)
    hung: list[str] = []

    async def hangs(draw: Draw, places: SharedPlaces, prompt: Prompt) -> Collected:
        result = await draw()
        if places.done == 0 and not hung:  # the first group of the run, once
            hung.append(prompt.id)
            await asyncio.sleep(600)
        return result

    around_groups(monkeypatch, hangs)
    result = run(tmp_path, "run", grpo__steps=8, tasks__1=None)
    rows = steps(result.folder, "grpo")
    assert len(hung) == 1
    assert max(row["staleness/max"] for row in rows) == 2
    assert [row["staleness/dropped"] for row in rows] == [0, 0, 0, 1, 0, 0, 0, 0]
    # No prompt is lost, and none is trained on in its place: those of a run in step, in another order.
    trained = [prompt for step in sorted(handed) for prompt in handed[step]]
    in_step = trained_in_step(tmp_path, monkeypatch, grpo__steps=8, tasks__1=None)
    assert sorted(trained) == sorted(in_step)
    assert trained != in_step


def test_a_slow_group_holds_up_its_own_step_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of step 2 waits until one of step 3 has been scored, which a batch after the other never would be."""
    scored = asyncio.Event()
    waited: list[bool] = []

    async def waits(draw: Draw, places: SharedPlaces, _: Prompt) -> Collected:
        result = await draw()
        if places.done == 2:
            scored.set()
        if places.done == 1 and not waited:
            waited.append(True)
            await scored.wait()
        return result

    around_groups(monkeypatch, waits)
    assert ages(run(tmp_path, "run")) == AGES
    assert waited


def test_an_evaluation_waits_for_the_groups_on_their_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, met = [0], list[int]()

    async def counted(draw: Draw, *_: Any) -> Collected:
        under_way[0] += 1
        await asyncio.sleep(0.3)  # longer than a step trains
        result = await draw()
        under_way[0] -= 1
        return result

    around_groups(monkeypatch, counted)
    score = Evaluator.score

    def noted(self: Evaluator, items: int) -> Any:
        met.append(under_way[0])
        return score(self, items)

    monkeypatch.setattr(Evaluator, "score", noted)
    run(tmp_path, "run", eval__every=1, grpo__steps=3)
    assert met == [0] * len(met)
    assert len(met) >= 3


class Interrupts:
    """An observer that presses Ctrl-C after a step."""

    def before_update(self, record: StepRecord) -> list[Decision]:
        return []

    def after_update(self, record: StepRecord) -> list[Decision]:
        if record.step == 3:
            signal.raise_signal(signal.SIGINT)
        return []


@pytest.mark.parametrize("curriculum", [pytest.param("weights", marks=by_night), "learnability"])
def test_an_interrupted_run_loses_no_prompt_and_trains_on_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, curriculum: str
) -> None:
    changes = {**SMALL, "grpo__async": 2, "grpo__curriculum": {"kind": curriculum}, "grpo__dynamic_sampling": 1}
    handed = watch_steps(monkeypatch)
    undisturbed = train(recipe(tmp_path, **changes), out=tmp_path / "undisturbed")
    whole = dict(handed)
    handed.clear()
    delay(monkeypatch, 1)
    result = train(recipe(tmp_path, **changes), out=tmp_path / "run", observers=[Interrupts()])
    assert result.outcome == "interrupted"
    assert sorted(handed) == [1, 2, 3]
    resumed = train(recipe(tmp_path, **changes), out=tmp_path / "run", resume=True)
    assert handed == whole
    assert metrics(resumed.folder) == metrics(undisturbed.folder)
    assert same_weights(resumed.model, undisturbed.model)


def test_the_first_interrupt_ends_the_wait_for_a_group_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = recipe(tmp_path, **SMALL, grpo__async=2)
    undisturbed = train(given, out=tmp_path / "undisturbed")
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGINT, lambda *_: None)
    pressed: list[bool] = []

    async def hangs(draw: Draw, places: SharedPlaces, _: Prompt) -> Collected:
        if places.done == 3:
            while '"step": 3' not in (tmp_path / "run" / "metrics.jsonl").read_text():
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.5)
            if not pressed:
                pressed.append(True)
                signal.pthread_kill(main, signal.SIGINT)
            await asyncio.sleep(600)
        return await draw()

    with pytest.MonkeyPatch.context() as patch:
        around_groups(patch, hangs)
        try:
            result = train(given, out=tmp_path / "run")
        finally:
            signal.signal(signal.SIGINT, before)
    assert result.outcome == "interrupted"
    assert [row["step"] for row in steps(result.folder, "grpo")] == [1, 2, 3]
    resumed = train(given, out=tmp_path / "run", resume=True)
    assert metrics(resumed.folder) == metrics(undisturbed.folder)
    assert same_weights(resumed.model, undisturbed.model)


def test_an_error_while_drawing_is_that_of_the_step_that_needs_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(draw: Draw, places: SharedPlaces, _: Prompt) -> Collected:
        if places.done == 3:
            raise InputError("the pages are gone")
        return await draw()

    around_groups(monkeypatch, fails)
    with pytest.raises(InputError, match=r"^the pages are gone$"):
        run(tmp_path, "run")
    assert [row["step"] for row in steps(tmp_path / "run" / "run", "grpo")] == [1, 2, 3]


@pytest.mark.parametrize("ahead", [0, pytest.param(1, marks=by_night), 2])
def test_a_run_that_an_error_ended_within_a_step_goes_on_as_one_that_was_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """And does not say that it begins otherwise: the step that broke off has left no trace in the checkpoint."""
    given = recipe(tmp_path, **{**SMALL, "grpo__async": ahead, "guard__max_kl": 0.02})
    undisturbed = train(given, out=tmp_path / "undisturbed")
    collect, seen = Collector.collect, [0]

    async def fails(self: Collector, *args: Any) -> Collected:
        result = await collect(self, *args)
        seen[0] += 1
        if seen[0] == 6 + 8 * (ahead > 0):
            raise RewardError("the judge is gone")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Collector, "collect", fails)
        with pytest.raises(RewardError, match="the judge is gone"):
            train(given, out=tmp_path / "run")
    assert len(steps(tmp_path / "run", "grpo")) in (2, 3, 4)
    resumed = train(given, out=tmp_path / "run", resume=True)
    codes = {event["code"] for event in events(resumed.folder)}
    assert "large-update" in codes, "the guard has something to remember"
    assert "resume-differs" not in codes
    assert metrics(resumed.folder) == metrics(undisturbed.folder)
    assert same_weights(resumed.model, undisturbed.model)


class Scripted(LiveGuard):
    """A guard that decides what it is told, by step, and keeps every weight that has drawn."""

    def __init__(self, script: dict[int, str]) -> None:
        super().__init__(Bounds())
        self.script = script

    @property
    def keeps(self) -> bool:
        return True

    def judge(self, step: int, trials: Sequence[Change]) -> Decision | None:
        return None

    def before_update(self, record: StepRecord) -> list[Decision]:
        return []

    def after_update(self, record: StepRecord) -> list[Decision]:
        if record.step not in self.script:
            return []
        self._overrides = CoefficientOverrides(learning_rate=1e-12)
        kind: Any = self.script[record.step]
        return [Decision(kind, Event(record.step, "scripted", "critical", "as told", kind, {}))]


def test_a_rollback_returns_to_weights_that_drew_and_draws_the_same_prompts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constant = {"grpo__optimizer__schedule": "constant"}
    handed = watch_steps(monkeypatch)
    # Steps 1 to 3 are drawn by the first weights, step 4 by those that step 1 made: kept after it, restored after 5.
    back = run(tmp_path, "back", [Scripted({5: "rollback"})], **constant)
    again = dict(handed)
    run(tmp_path, "plain", [Scripted({})], **constant)
    one = run(tmp_path, "one", [Scripted({})], **constant, grpo__steps=1)
    assert handed | {1: again[1]} == again
    for result in (back, one):
        result.model.double()
    pairs = zip(back.model.parameters(), one.model.parameters(), strict=True)
    assert max(float((a - b).detach().abs().max()) for a, b in pairs) < 1e-7
    assert ages(back) == [0, 1, 2, 2, 2, 0]


LOGS = """
def logs(prompts, completions, completion_ids, log_metric, **columns):
    log_metric("tokens", float(sum(map(len, completion_ids))))
    return [float(sum(ids) % 5) / 4 for ids in completion_ids]
"""


def test_what_rewards_log_counts_for_the_step_that_trains_on_it(tmp_path: Path) -> None:
    results = []
    for seed in range(2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "logs.py").write_text(LOGS, encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            delay(patch, seed)
            given = {**SMALL, "grpo__async": 2, "tasks__0__rewards": [f"{folder / 'logs.py'}:logs"]}
            results.append(train(recipe(folder, **given), out=folder / "run"))
    first, other = (steps(result.folder, "grpo") for result in results)
    assert all("tokens" in row for row in first)
    assert [row["tokens"] for row in first] == [row["tokens"] for row in other]


EVEN = """
def even(prompts, completions, completion_ids, **columns):
    return [sum(i % 2 == 0 for i in ids) / len(ids) for ids in completion_ids]
"""


def test_a_policy_learns_from_groups_of_two_steps_ago(tmp_path: Path) -> None:
    (tmp_path / "even.py").write_text(EVEN, encoding="utf-8")
    tasks = {f"tasks__{i}__rewards": [f"{tmp_path / 'even.py'}:even"] for i in range(2)}
    given = {"grpo__steps": 30, "grpo__batch_size": 32, "grpo__group_size": 8, "grpo__updates_per_batch": 1}
    rows = steps(run(tmp_path, "run", **given, **tasks, guard={"max_kl": 0.2}).folder, "grpo")
    rewards = [row["reward"] for row in rows]
    assert statistics.fmean(rewards[-5:]) > statistics.fmean(rewards[:5]) + 0.05
    assert all(row["staleness/max"] == 2 for row in rows[2:])


def test_places_are_taken_together_and_in_turn() -> None:
    async def main() -> list[str]:
        room, order = Room(3), list[str]()

        async def stay(name: str, places: int, until: asyncio.Event) -> None:
            await room.take(places)
            order.append(name)
            await until.wait()
            room.leave(places)

        first, rest = asyncio.Event(), asyncio.Event()
        rest.set()
        tasks = [asyncio.create_task(stay("two", 2, first)), asyncio.create_task(stay("gives up", 2, rest))]
        tasks += [asyncio.create_task(stay("three", 3, rest)), asyncio.create_task(stay("one", 1, rest))]
        await asyncio.sleep(0.01)
        assert order == ["two"]  # one place is free, and whoever waits first has it first
        tasks[1].cancel()
        first.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        return order

    assert asyncio.run(main()) == ["two", "three", "one"]


def test_a_group_that_fails_before_it_asks_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collect, calls = Collector.collect, 0

    async def once(self: Collector, *rest: Any, **more: Any) -> Collected:
        nonlocal calls
        calls += self._shared is not None
        if self._shared is not None and calls == 2:
            raise RewardError("the prompt cannot be written")
        return await collect(self, *rest, **more)

    monkeypatch.setattr(Collector, "collect", once)
    begin = time.monotonic()
    with pytest.raises(RewardError, match="cannot be written"):
        run(tmp_path, "run")
    assert time.monotonic() - begin < 60
