"""Rewards that cannot go on (a budget used up, a silent endpoint) end a run without losing what it had done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from levelhead.api import Result, train
from levelhead.cli.main import _explain
from levelhead.errors import RewardError
from levelhead.training.collect import Collector
from night import by_night
from small_run import events, metrics, recipe, same_weights

CALLS = {
    "evaluation after SFT": 3,
    "second step": 6,
    "evaluation on the way": 8,
    "third step": 9,
    "last evaluation": 12,
}
"""Which of a run's collections fails: two tasks are evaluated before SFT and after it, then each step is one."""
AHEAD = {"evaluation after SFT": 3, "second step": 9, "third step": 12}
"""The same where each of a batch's three groups is sampled by itself while the step before trains."""
BY_DAY = {(0, "evaluation after SFT"), (0, "third step"), (0, "last evaluation"), (1, "second step")}


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


def keys(folder: Path, ahead: int) -> dict[str, Any]:
    folder.mkdir()
    merge = {"kind": "sum", "monitor_every": 1}
    return recipe(folder, eval__every=2, checkpoint__every=0, grpo__merge=merge, grpo__async=ahead)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """A run without, and one with a batch ahead."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return [train(keys(folder / f"data{n}", n), out=folder / f"run{n}") for n in range(2)]


def fail_at(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    collect, count = Collector.collect, 0

    async def counted(self: Collector, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == call:
            raise RewardError("the budget is used up")
        return await collect(self, *args, **kwargs)

    monkeypatch.setattr(Collector, "collect", counted)


@pytest.mark.parametrize(
    ("ahead", "moment"),
    [
        pytest.param(ahead, moment, marks=() if (ahead, moment) in BY_DAY else by_night)
        for ahead, moments in enumerate((CALLS, AHEAD))
        for moment in moments
    ],
)
def test_a_run_that_its_rewards_ended_goes_on_as_if_nothing_had_been(
    ahead: int, moment: str, tmp_path: Path, undisturbed: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = keys(tmp_path / "data", ahead)
    with monkeypatch.context() as patch:
        fail_at(patch, (AHEAD if ahead else CALLS)[moment])
        with pytest.raises(RewardError) as caught:
            train(made, out=tmp_path / "run")
    (last,) = [event for event in events(tmp_path / "run") if event["action"] == "stop"]
    assert last["message"] == "the budget is used up"
    assert "continue with --resume" in "".join(caught.value.__notes__)

    done = train(made, out=tmp_path / "run", resume=True)
    assert done.outcome == "done"
    assert metrics(done.folder) == metrics(undisturbed[ahead].folder)
    assert same_weights(done.model, undisturbed[ahead].model)
    assert not [event for event in events(done.folder) if event["action"] == "stop"]


def test_the_command_line_says_what_happened_and_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    error = RewardError("the budget is used up")
    error.add_note("saved after step 3; continue with --resume --out runs/x")
    assert _explain(error) == 3
    assert capsys.readouterr().err.splitlines() == [
        "levelhead: the budget is used up",
        "saved after step 3; continue with --resume --out runs/x",
    ]
