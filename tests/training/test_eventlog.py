"""What a person must know reaches them: on the terminal as it happens, at the end, and in the exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from levelhead.cli.main import main
from levelhead.records import Decision, Event, StepRecord
from levelhead.training.eventlog import EventLog
from levelhead.training.rundir import RunDir
from levelhead.training.sinks import ProgressSink
from small_run import events, recipe

HOSTILE = "it said \x1b]0;owned\x07\x1b[2J\nand went"


class Teller:
    """An observer that says one thing of each severity a step, and stops at a step."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop = stop

    def before_update(self, record: StepRecord) -> Sequence[Decision]:
        return ()

    def after_update(self, record: StepRecord) -> Sequence[Decision]:
        step = record.step
        told = [
            Event(step, "calm", "info", "nothing to see"),
            Event(step, "odd", "warning", HOSTILE),
            *([Event(step, "entropy-collapse", "critical", "entropy is gone")] if step == 2 else []),
        ]
        decisions = [Decision("warn", event) for event in told]
        if step == self.stop:
            decisions.append(Decision("stop", Event(step, "odd", "critical", "enough", "stop")))
        return decisions


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run ``levelhead train`` with observers; returns the exit code, stdout and stderr."""
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)

    def run(given: dict[str, Any], *observers: Any) -> tuple[Any, str, str]:
        monkeypatch.setattr("levelhead.api.guarded", lambda _recipe, _given: list(observers))
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(given), encoding="utf-8")
        monkeypatch.setattr(sys, "argv", ["levelhead", "train", str(path), "--out", str(tmp_path / "run"), "--json"])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return run


def small(folder: Path, **changes: Any) -> dict[str, Any]:
    return recipe(folder, **{"sft": None, "eval__final_items": 1, "grpo__audit__first": 0, **changes})


def test_loud_events_stand_on_the_terminal_as_they_happen_and_once_at_the_end(command: Any, tmp_path: Path) -> None:
    code, out, err = command(small(tmp_path), Teller())
    assert code == 0
    live, block = err.split("What was seen in this run")
    lines = [line for line in live.splitlines() if line.startswith("levelhead: step")]
    assert lines[0] == "levelhead: step 1: warning: odd: it said and went"
    assert lines[1] == "levelhead: step 2: warning: odd: it said and went (2 times so far)"
    assert lines[2].startswith("levelhead: step 2: critical: entropy-collapse: entropy is gone. To change: grpo.")
    # The line stands where it happened: before what is said of later steps.
    assert live.index("entropy is gone") < live.index("grpo 4/4")
    assert "critical: entropy-collapse, once, step 2" in block
    assert "warning: odd, 4 times, steps 1 to 4" in block
    assert block.index("critical: ") < block.index("warning: ")
    # One thing to change: the doctor's, who sees that these answers are cut.
    assert block.count("change: grpo.") == 1
    assert block.index("length-truncation") < block.index("entropy-collapse")
    # What is no more than a note stays in the file; so does the whole of a hostile text.
    assert "nothing to see" not in err
    assert "\x1b" not in err
    assert "\x07" not in err
    assert {event["code"] for event in events(tmp_path / "run")} == {"calm", "odd", "entropy-collapse"}
    assert events(tmp_path / "run")[1]["message"] == HOSTILE
    assert "levelhead: step" not in out


def test_a_stop_is_named_and_is_the_exit_code(command: Any, tmp_path: Path) -> None:
    code, _, err = command(small(tmp_path), Teller(stop=3))
    assert code == 1
    assert "levelhead: step 3: critical: odd [stop]: enough" in err
    assert "levelhead: stopped at step 3 by odd; see " in err.splitlines()[-1]


BREAKS = """
calls = []


def breaks(prompts, completions, completion_ids, **columns):
    calls.append(1)
    if len(calls) > {calls}:
        raise {error}
    return [float(sum(ids) % 5) / 4 for ids in completion_ids]
"""


@pytest.mark.parametrize("calls", [0, 2])
def test_an_error_of_the_rewards_is_an_event_and_exit_code_3(command: Any, tmp_path: Path, calls: int) -> None:
    given = small(tmp_path)
    source = tmp_path / "breaks.py"
    source.write_text(BREAKS.format(calls=calls, error="ConnectionError('401')"), encoding="utf-8")
    given["tasks"] = [{**given["tasks"][0], "rewards": [f"{source}:breaks"]}]
    code, _, err = command(given)
    assert code == 3
    (last,) = [event for event in events(tmp_path / "run") if event["action"] == "stop"]
    assert (last["code"], last["severity"]) == ("rewards", "critical")
    assert last["evidence"] == {"stage": "grpo", "error": "RewardError", "cause": "reward-function"}
    assert "critical: rewards [stop]: " in err
    assert "critical: rewards, once" in err


def test_any_other_error_is_an_event_too(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> None:
        raise RuntimeError("no \x1b[1mmemory\x1b[0m")

    monkeypatch.setattr("levelhead.training.run.note_first_steps", lost)
    code, _, err = command(small(tmp_path))
    assert code == 3
    (last,) = events(tmp_path / "run")
    assert (last["code"], last["severity"], last["action"]) == ("failed", "critical", "stop")
    assert "critical: failed [stop]: RuntimeError: no memory" in err


def test_what_repeats_itself_is_told_ever_more_rarely_and_a_stop_always(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w") as file:
        log = EventLog(RunDir(tmp_path), console=Console(file=file, width=80))
        for step in range(1, 41):
            log.write([Event(step, "endpoint", "warning", "silent")])
        log.write([Event(41, "endpoint", "warning", "silent", "stop")])
    said = [int(line.split()[2].rstrip(":")) for line in (tmp_path / "said").read_text().splitlines()]
    assert said == [1, 2, 3, 4, 8, 16, 32, 41]
    assert len(events(tmp_path)) == 41


def test_a_process_that_is_not_the_first_writes_and_is_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    EventLog(RunDir(tmp_path), loud=False).write([Event(1, "endpoint", "critical", "silent")])
    assert len(events(tmp_path)) == 1
    assert capsys.readouterr().err == ""


def test_a_line_above_the_bar_leaves_the_bar_whole(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w") as file:
        console = Console(file=file, width=100, force_terminal=True, color_system=None)
        log = EventLog(RunDir(tmp_path), console=console)
        bar = ProgressSink("grpo", 0, 4, console)
        bar.write(StepRecord(1, "grpo", {"reward": 0.5}))
        log.write([Event(1, "endpoint", "warning", "silent " * 30)])
        bar.write(StepRecord(2, "grpo", {"reward": 0.5}))
        bar.close()
    said = (tmp_path / "said").read_text()
    assert "levelhead: step 1: warning: endpoint: " + "silent " * 29 + "silent\n" in said
    # The bar is drawn again, alone on its line, after what was said.
    after = said.split("silent\n")[-1]
    assert "2/4" in after
    assert "reward +0.500" in after
