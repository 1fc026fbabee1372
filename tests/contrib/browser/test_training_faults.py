"""Whole training runs whose browser and pages break, and what is left of a run when it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from levelhead.api import Result, train
from levelhead.contrib.browser.episode import BrowserEpisode
from levelhead.contrib.browser.leftovers import BrowserRecord, Process, records_folder
from levelhead.tasks.base import Step
from levelhead.training.group_queue import GroupQueue
from small_run import TINY, events, metrics, same_weights, steps

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

STEPS = 6
ROLLOUTS = 4
RECIPE: dict[str, Any] = {
    "name": "faults",
    "check": False,
    "threads": 1,
    "model": {"preset": "tiny", "tiny": {**TINY, "context": 512}, "dtype": "float32"},
    "tasks": [
        {
            "kind": "browser",
            "tasks": ["click-test", "enter-text"],
            "items": 10,
            "pages": 4,
            "spare_pages": 0,
            "step_limit": 1,
            "action_timeout": 8,  # one page hangs; on a busy machine others take seconds
        }
    ],
    "grpo": {
        "steps": STEPS,
        "batch_size": ROLLOUTS,
        "group_size": 2,
        "sampling": {"max_new_tokens": 2},
        "entropy": {"coef": 0.01},
        "curriculum": "learnability",
    },
    "guard": {"policy": "off"},
    "eval": {"final_items": 2, "sampling": {"max_new_tokens": 2}},
    "checkpoint": {"every": 1},
}
"""Seconds of work: a policy that knows nothing, one turn an episode.  The entropy bonus alone moves its weights."""


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The run when nothing breaks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("levelhead.report.write", lambda _folder: None)
        return train(RECIPE, out=tmp_path_factory.mktemp("undisturbed") / "run")


def browser_of(episode: BrowserEpisode) -> Process:
    assert episode._pool is not None
    assert episode._pool.host is not None
    return episode._pool.host.record.browser


async def kill_the_browser(episode: BrowserEpisode) -> None:
    os.kill(browser_of(episode).pid, signal.SIGKILL)


async def close_the_page(episode: BrowserEpisode) -> None:
    assert episode.place is not None
    await episode.place.page.close()


async def hang_the_page(episode: BrowserEpisode) -> None:
    await on_click(episode, "for (;;) ;")


async def lead_away(episode: BrowserEpisode) -> None:
    await on_click(episode, "location.href = 'about:blank'")


async def on_click(episode: BrowserEpisode, script: str) -> None:
    assert episode.place is not None
    await episode.place.page.evaluate(f"document.addEventListener('click', () => {{ {script} }}, true)")


FAULTS: dict[int, Callable[[BrowserEpisode], Awaitable[None]]] = {
    2: kill_the_browser,
    3: close_the_page,
    4: hang_the_page,
    5: lead_away,
}
"""What goes wrong in which step."""


@pytest.fixture
def browsers(monkeypatch: pytest.MonkeyPatch) -> dict[int, Process]:
    """Let the faults happen, each to one episode, on whose page the policy then clicks; gives the browsers used."""
    due: list[Callable[[BrowserEpisode], Awaitable[None]]] = []
    used: dict[int, Process] = {}
    act, draw = BrowserEpisode.act, GroupQueue.next

    async def faulty(self: BrowserEpisode, text: str) -> Step:
        browser = browser_of(self)
        used[browser.pid] = browser
        if due:
            await due.pop()(self)
            text = "click(1)"
        return await act(self, text)

    def watched(self: GroupQueue, step: int, *rest: Any) -> Any:
        due.extend([FAULTS[step]] if step in FAULTS else [])
        return draw(self, step, *rest)

    monkeypatch.setattr(BrowserEpisode, "act", faulty)
    monkeypatch.setattr(GroupQueue, "next", watched)
    return used


def test_a_run_goes_on_whatever_breaks_and_its_events_say_what(browsers: dict[int, Process], tmp_path: Path) -> None:
    result = train(RECIPE, out=tmp_path / "run")
    assert result.outcome == "done"
    rows = steps(tmp_path / "run", "grpo")
    assert [(row["num_rollouts"], row["dropped_rollouts"]) for row in rows] == [(ROLLOUTS, 0)] * STEPS
    told = {step: [e["code"] for e in events(tmp_path / "run") if e["step"] == step] for step in range(STEPS + 1)}
    assert told[0] == ["browser-started"] * 2  # for the tokenizer's texts, and for training
    assert set(told[2]) == {"page-lost", "browser-lost", "browser-started"}
    assert [told[step] for step in (1, 3, 4, 5, 6)] == [[], ["page-lost"], ["page-hung"], ["page-left"], []]
    assert len(browsers) == 3
    assert not any(browser.alive for browser in browsers.values())


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start the run as a process of its own."""
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    command = [sys.executable, "-m", "levelhead.cli", "train", str(path), "--out", str(folder / "run")]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(done: Callable[[], bool], seconds: float = 300) -> bool:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def records(owner: int) -> list[BrowserRecord]:
    """The browsers that a process has started and not ended."""
    rows = []
    for path in records_folder().glob("*.json"):
        try:
            rows.append(BrowserRecord.read(path))
        except ValueError:  # another process has just taken it away
            continue
    return [record for record in rows if record.owner.pid == owner]


def taught(folder: Path) -> int:
    """Training steps on record."""
    log = folder / "run" / "metrics.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return sum('"grpo"' in line for line in lines)


def in_training(folder: Path) -> tuple[subprocess.Popen[bytes], BrowserRecord]:
    """Start the run and wait until it trains; returns it and its browser."""
    process = start(folder)
    try:
        assert wait_for(lambda: taught(folder) >= 2 or process.poll() is not None)
        (record,) = records(process.pid)
        assert record.browser.alive
    except BaseException:
        process.kill()
        raise
    return process, record


def test_a_terminated_run_saves_and_leaves_no_browser(tmp_path: Path) -> None:
    process, record = in_training(tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    assert not record.browser.alive
    assert not records(process.pid)
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


def test_a_killed_runs_browser_is_ended_at_the_next_start_which_goes_on_to_the_bit(
    undisturbed: Result, tmp_path: Path
) -> None:
    process, record = in_training(tmp_path)
    # A browser that hangs does not notice that its driver and its trainer are gone.
    os.kill(record.browser.pid, signal.SIGSTOP)
    assert record.driver is not None
    os.kill(record.driver.pid, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert record.browser.alive
    before = len(events(tmp_path / "run"))
    resumed = train(RECIPE, out=tmp_path / "run", resume=True)
    assert wait_for(lambda: not record.browser.alive, 20)
    assert not records(process.pid)
    told = [e["message"] for e in events(tmp_path / "run")[before:] if e["code"] == "browser-leftover-ended"]
    assert told == [f"ended browser {record.browser.pid}, which an earlier run had left behind"]
    assert metrics(tmp_path / "run") == metrics(undisturbed.folder)
    assert same_weights(resumed.model, undisturbed.model)
    state = [json.loads((run / "checkpoints" / f"step-{STEPS:06d}" / "state.json").read_text())["stream"]
             for run in (tmp_path / "run", undisturbed.folder)]  # fmt: skip
    assert state[0] == state[1]
