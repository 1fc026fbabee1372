"""A batch drawn ahead: the same numbers whatever the timing, by older weights that the loss corrects for."""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from levelhead.api import Result, train
from levelhead.errors import InputError
from levelhead.guard import LiveGuard
from levelhead.recipe.guard import Guard as Bounds
from levelhead.records import Change, CoefficientOverrides, Decision, Event, StepRecord
from levelhead.rollout.generators.local import LocalGenerator
from levelhead.training.collect import Collected, Collector
from levelhead.training.optim import Updater
from levelhead.training.rollout_batcher import RolloutBatcher
from small_run import events, metrics, recipe, same_weights, steps

SMALL = {"sft": None, "eval__final_items": 1, "checkpoint__every": 0, "grpo__audit__first": 0}


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Any:
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    assert [thread.name for thread in left if thread.name.startswith("levelhead")] == []


def run(folder: Path, name: str, observers: Sequence[Any] = (), **changes: Any) -> Result:
    data = folder / name
    data.mkdir()
    return train(recipe(data, **{**SMALL, "grpo__async": 1, **changes}), out=data / "run", observers=observers)


def draws_ahead(collector: Collector) -> bool:
    """Whether a collector draws with a copy of the weights."""
    generator = collector._generator
    assert isinstance(generator, LocalGenerator)
    return not generator.policy.parameters


def delay(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Make drawing and training take turns of random length."""
    rng, collect, step = random.Random(seed), Collector.collect, Updater.step

    async def slow_collect(self: Collector, *args: Any) -> Collected:
        await asyncio.sleep(rng.random() * 0.2)
        return await collect(self, *args)

    def slow_step(self: Updater) -> None:
        time.sleep(rng.random() * 0.2)
        step(self)

    monkeypatch.setattr(Collector, "collect", slow_collect)
    monkeypatch.setattr(Updater, "step", slow_step)


def watch_draws(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[str]]:
    """Prompts of each step's batch, as it was drawn last."""
    draws: dict[int, list[str]] = {}
    draw = RolloutBatcher.draw

    async def watched(self: RolloutBatcher, step: int, *rest: Any) -> Collected:
        collected = await draw(self, step, *rest)
        draws[step] = [group.prompt.id for group in collected.groups]
        return collected

    monkeypatch.setattr(RolloutBatcher, "draw", watched)
    return draws


def test_timing_changes_no_number(tmp_path: Path) -> None:
    changes = {"grpo__dynamic_sampling": 1, "eval__every": 2, "grpo__curriculum": {"kind": "learnability"}}
    results = []
    for seed in range(2):
        with pytest.MonkeyPatch.context() as patch:
            if seed:
                delay(patch, seed)
            results.append(run(tmp_path, str(seed), **changes))
    first, other = results
    assert metrics(other.folder) == metrics(first.folder)
    assert same_weights(other.model, first.model)


def test_an_evaluation_waits_for_the_batch_on_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: list[bool] = []
    calls: list[bool] = []
    collect = Collector.collect

    async def alone(self: Collector, *args: Any) -> Collected:
        calls.append(draws_ahead(self))
        under_way.append(calls[-1])
        assert len(under_way) == 1
        if calls.count(True) == 2:
            await asyncio.sleep(2.0)  # longer than a step trains
        result = await collect(self, *args)
        under_way.clear()
        return result

    monkeypatch.setattr(Collector, "collect", alone)
    run(tmp_path, "run", eval__every=1, grpo__steps=2)
    assert calls.count(True) == 2


def test_the_first_batch_is_on_policy_and_the_others_are_a_step_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_of = watch_draws(monkeypatch)
    ahead = run(tmp_path, "ahead")
    drawn = dict(ahead_of)
    plain = run(tmp_path, "plain", grpo__async=0)
    rows, others = steps(ahead.folder, "grpo"), steps(plain.folder, "grpo")
    assert [row["off_policy/mean"] for row in rows] == [0, 2, 2, 2]
    assert {k: v for k, v in rows[0].items() if k != "off_policy/mean"} == others[0]
    assert not any("off_policy/mean" in row for row in others)
    assert drawn == ahead_of
    assert len({tuple(ids) for ids in drawn.values()}) == 4


@pytest.mark.parametrize("kind", ["ppo_clip", "cispo", "gspo"])
def test_the_loss_sees_how_far_the_policy_has_moved(tmp_path: Path, kind: str) -> None:
    result = run(tmp_path, "run", grpo__updates_per_batch=1, grpo__loss__kind=kind)
    first, *others = steps(result.folder, "grpo")
    assert first["sampling/sampling_logp_difference/mean"] < 1e-5
    assert first["ratio/mean"] == pytest.approx(1, abs=1e-5)
    for row in others:
        assert row["sampling/sampling_logp_difference/mean"] > 1e-3
        assert 1e-6 < abs(row["ratio/mean"] - 1) < 1


@pytest.mark.parametrize("updates", [1, 2])
def test_an_importance_correction_leads_from_the_weights_that_drew_to_those_of_the_step(
    tmp_path: Path, updates: int
) -> None:
    importance = {"importance": "token_truncate", "importance_high": 1.05}
    given = {"grpo__loss": importance, "grpo__updates_per_batch": updates}
    first, *others = steps(run(tmp_path, "run", **given).folder, "grpo")
    assert first["sampling/importance_sampling_ratio/mean"] == pytest.approx(1, abs=1e-5)
    assert first["sampling/importance_sampling_ratio/cut_mean"] == 0
    for row in others:
        assert 0 < row["sampling/importance_sampling_ratio/cut_mean"] < 1
        if updates == 1:  # the ratio is that of the step's own updates
            assert row["ratio/mean"] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("updates", [1, 2])
def test_older_weights_with_a_correction_are_no_mismatch_of_sampler_and_trainer(tmp_path: Path, updates: int) -> None:
    given = {"grpo__loss": {"importance": "token_truncate"}, "grpo__updates_per_batch": updates}
    result = run(tmp_path, "run", **given)
    beyond = "sampling/logp_difference_beyond_rounding"
    first, *others = steps(result.folder, "grpo")
    assert first[beyond] == 0
    assert not any(beyond in row for row in others)
    assert "logprob-mismatch" not in {event["code"] for event in events(result.folder)}


def test_scores_made_beforehand_are_no_old_log_probabilities_of_a_batch_drawn_ahead(tmp_path: Path) -> None:
    result = run(tmp_path, "run", grpo__updates_per_batch=1, grpo__loss__top_entropy=0.5)
    _, *others = steps(result.folder, "grpo")
    assert all(abs(row["ratio/mean"] - 1) > 1e-6 for row in others)


class Scripted(LiveGuard):
    """A guard that decides what it is told, by step, and keeps every weight that has drawn."""

    def __init__(self, script: dict[int, tuple[str, CoefficientOverrides]]) -> None:
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
        kind, self._overrides = self.script[record.step]
        return [Decision(kind, Event(record.step, "scripted", "critical", "as told", kind, {}))]  # type: ignore[arg-type]


def test_a_rollback_returns_to_weights_that_drew_and_draws_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constant = {"grpo__optimizer__schedule": "constant"}
    drawn = watch_draws(monkeypatch)
    # Batches 1 and 2 are drawn by the first weights, batch 3 by those that step 1 made.  What is kept after step 3,
    # and restored after step 4, are these.
    back = run(
        tmp_path,
        "back",
        [Scripted({4: ("rollback", CoefficientOverrides(learning_rate=1e-12))})],
        grpo__steps=5,
        **constant,
    )
    again = dict(drawn)
    plain = run(tmp_path, "plain", [Scripted({})], grpo__steps=5, **constant)
    one = run(tmp_path, "one", [Scripted({})], grpo__steps=1, **constant)
    for result in (back, one):
        result.model.double()
    pairs = zip(back.model.parameters(), one.model.parameters(), strict=True)
    assert max(float((a - b).detach().abs().max()) for a, b in pairs) < 1e-7
    assert [row["off_policy/mean"] for row in steps(back.folder, "grpo")] == [0, 2, 2, 2, 0]
    assert [row["off_policy/mean"] for row in steps(plain.folder, "grpo")] == [0, 2, 2, 2, 2]
    assert again == drawn


def test_a_knob_turns_the_temperature_of_the_batch_after_the_next(tmp_path: Path) -> None:
    guard = Scripted({1: ("adapt", CoefficientOverrides(temperature=2.0))})
    given = {"grpo__optimizer__learning_rate": 1e-12, "grpo__updates_per_batch": 1}
    result = run(tmp_path, "run", [guard], **given)
    rows = steps(result.folder, "grpo")
    # Scored at the temperature that it was drawn at: still weights give every token what the sampler gave it.
    assert max(row["sampling/sampling_logp_difference/max"] for row in rows) < 1e-4
    cold = steps(run(tmp_path, "cold", [Scripted({})], **given).folder, "grpo")
    assert [a["entropy"] == pytest.approx(b["entropy"], abs=1e-4) for a, b in zip(rows, cold, strict=True)] == [
        True,
        True,
        False,
        False,
    ]


def test_an_error_while_drawing_is_that_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collect, calls = Collector.collect, []

    async def fails(self: Collector, *args: Any) -> Collected:
        calls.append(draws_ahead(self))
        if calls.count(True) == 3:
            raise InputError("the pages are gone")
        return await collect(self, *args)

    monkeypatch.setattr(Collector, "collect", fails)
    with pytest.raises(InputError, match=r"^the pages are gone$"):
        run(tmp_path, "run")
    assert [row["step"] for row in steps(tmp_path / "run" / "run", "grpo")] == [1, 2]


WAITS = """
import asyncio, pathlib
here = pathlib.Path(__file__).parent

async def waits(prompts, completions, completion_ids, **columns):
    count = here / "count"
    n = int(count.read_text()) + 1 if count.exists() else 1
    count.write_text(str(n))
    if n == int((here / "wait").read_text()):
        await asyncio.sleep(600)
    return [float(sum(ids) % 5) / 4 for ids in completion_ids]
"""


class Interrupts:
    """An observer that presses Ctrl-C after a step."""

    def before_update(self, record: StepRecord) -> list[Decision]:
        return []

    def after_update(self, record: StepRecord) -> list[Decision]:
        if record.step == 2:
            signal.raise_signal(signal.SIGINT)
        return []


def waiting(folder: Path, call: int) -> dict[str, Any]:
    """A recipe whose reward function never comes back from one of its calls: an evaluation, then one a batch."""
    (folder / "waits.py").write_text(WAITS, encoding="utf-8")
    (folder / "wait").write_text(str(call))
    given = recipe(folder, **SMALL, grpo__async=1, tasks__0__rewards=[f"{folder / 'waits.py'}:waits"])
    given["tasks"] = given["tasks"][:1]
    return given


@pytest.fixture
def harmless_interrupts() -> Iterator[None]:
    """An interrupt that comes when nothing handles it any more ends no test session."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_calls_off_what_is_being_drawn_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    undisturbed = train(waiting(tmp_path / "a", 0), out=tmp_path / "undisturbed")
    given = waiting(tmp_path / "b", 4)  # batch 3
    result = train(given, out=tmp_path / "run", observers=[Interrupts()])
    assert result.outcome == "interrupted"
    assert [row["step"] for row in steps(result.folder, "grpo")] == [1, 2]
    (tmp_path / "b" / "wait").write_text("0")
    resumed = train(given, out=tmp_path / "run", resume=True)
    assert resumed.outcome == "done"
    assert metrics(resumed.folder) == metrics(undisturbed.folder)
    assert same_weights(resumed.model, undisturbed.model)


def test_the_first_interrupt_ends_the_wait_for_a_batch_and_the_run_goes_on(
    tmp_path: Path, harmless_interrupts: None
) -> None:
    (tmp_path / "undisturbed").mkdir()
    undisturbed = train(waiting(tmp_path / "undisturbed", 0), out=tmp_path / "undisturbed" / "run")
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        count, rows = tmp_path / "count", tmp_path / "run" / "metrics.jsonl"
        while not (count.exists() and count.read_text() == "3" and rows.exists() and '"grpo"' in rows.read_text()):
            time.sleep(0.02)
        time.sleep(0.5)
        signal.pthread_kill(main, signal.SIGINT)

    finger = threading.Thread(target=press)
    finger.start()
    given = waiting(tmp_path, 3)  # batch 2
    result = train(given, out=tmp_path / "run")
    finger.join()
    assert result.outcome == "interrupted"
    assert [row["step"] for row in steps(result.folder, "grpo")] == [1]
    (tmp_path / "wait").write_text("0")
    resumed = train(given, out=tmp_path / "run", resume=True)
    assert metrics(resumed.folder) == metrics(undisturbed.folder)
    assert same_weights(resumed.model, undisturbed.model)


def test_what_happens_while_a_batch_is_drawn_is_dated_by_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay(monkeypatch, 1)
    happened: list[int] = []
    collect = Collector.collect

    async def noted(self: Collector, *args: Any) -> Collected:
        result = await collect(self, *args)
        if draws_ahead(self):
            happened.append(1)
        return result

    def drained(self: Collector, step: int) -> list[Event]:
        count = len(happened)
        happened.clear()
        return [Event(step, "test", "info", "drawn")] * count

    monkeypatch.setattr(Collector, "collect", noted)
    monkeypatch.setattr(Collector, "events", drained)
    result = run(tmp_path, "run", eval__every=2, guard={"policy": "off"})
    assert [event["step"] for event in events(result.folder)] == [1, 2, 3, 4]


EVEN = """
def even(prompts, completions, completion_ids, **columns):
    return [sum(i % 2 == 0 for i in ids) / len(ids) for ids in completion_ids]
"""


def test_a_policy_learns_from_batches_drawn_ahead(tmp_path: Path) -> None:
    (tmp_path / "even.py").write_text(EVEN, encoding="utf-8")
    tasks = {f"tasks__{i}__rewards": [f"{tmp_path / 'even.py'}:even"] for i in range(2)}
    given = {"grpo__steps": 30, "grpo__batch_size": 32, "grpo__group_size": 8, "grpo__updates_per_batch": 1}
    rows = steps(run(tmp_path, "run", **given, **tasks, guard={"max_kl": 0.2}).folder, "grpo")
    rewards = [row["reward"] for row in rows]
    assert statistics.fmean(rewards[-5:]) > statistics.fmean(rewards[:5]) + 0.12
    assert all(row["off_policy/mean"] == 1 for row in rows[1:])
