"""The terminal while training: one block where somebody watches, plain lines where nobody does."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from levelhead.records import Event, StepRecord
from levelhead.terminal import notebook
from levelhead.terminal.spark import BLOCKS, PLAIN
from levelhead.training.eventlog import EventLog
from levelhead.training.optim import NOT_FINITE
from levelhead.training.rundir import RunDir
from levelhead.training.sinks import ProgressSink


class Screen(io.TextIOWrapper):
    """A terminal that remembers what was written to it."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)

    @property
    def last(self) -> str:
        """What stands in the block after it was drawn last."""
        self.seek(0)
        written = self.read()
        at = written.rfind("grpo")
        return written[at:]


def record(step: int, **more: float) -> StepRecord:
    values = {
        "reward": 0.1 * step,
        "reward/one": float(step),
        "reward/two": -float(step),
        "entropy": 1.25,
        "kl": 0.0125,
    }
    return StepRecord(step, "grpo", {**values, "frac_reward_zero_std": 0.25, **more}, {"step_time": 0.5})


def played(screen: Screen, folder: Path, *events: Event, width: int = 100) -> str:
    console = Console(file=screen, width=width, force_terminal=True, color_system=None)
    log = EventLog(RunDir(folder), console=console)
    bar = log.progress("grpo", 0, 40, ["one", "two", "silent"])
    for step in range(1, 9):
        bar.write(record(step))
    log.write(events)
    bar.write(record(9))
    bar.close()
    return screen.last


def test_the_block_shows_progress_each_tasks_reward_with_its_curve_and_what_matters(tmp_path: Path) -> None:
    shown = played(Screen(), tmp_path)
    assert "9/40" in shown
    assert "entropy 1.250  KL 0.0125  dead groups 25%" in shown
    one, two = (next(line for line in shown.splitlines() if f" {name} " in line) for name in ("one", "two"))
    assert "+9.000" in one
    assert "-9.000" in two
    curve = one.split()[-1]
    assert (len(curve), curve[0], curve[-1]) == (9, BLOCKS[0], BLOCKS[-1])
    assert two.split()[-1] == curve[::-1]
    assert "silent" not in shown


def test_the_block_counts_events_and_names_the_newest(tmp_path: Path) -> None:
    events = [
        Event(7, "lr-too-high", "warning", "w"),
        Event(8, "deadlock", "critical", "c"),
        Event(8, "x", "info", "i"),
    ]
    shown = played(Screen(), tmp_path, *events)
    assert "1 critical event, 1 warning; the last: deadlock at step 8" in shown
    assert "critical" not in played(Screen(), tmp_path / "quiet")


def test_a_terminal_without_block_characters_gets_plain_ones(tmp_path: Path) -> None:
    shown = played(Screen("ascii"), tmp_path)
    assert PLAIN[-1] in next(line for line in shown.splitlines() if " one " in line)
    assert shown.isascii()


def test_no_line_of_the_block_is_wider_than_the_terminal(tmp_path: Path) -> None:
    events = [Event(8, "a-code-that-is-rather-long-for-a-terminal-of-forty-columns", "warning", "w")]
    shown = played(Screen(), tmp_path, *events, width=40)
    assert max(len(line) for line in shown.splitlines() if "\x1b" not in line) <= 40


def test_a_name_of_a_task_moves_no_cursor(tmp_path: Path) -> None:
    screen = Screen()
    bar = ProgressSink("grpo", 0, 4, Console(file=screen, width=80, force_terminal=True), tasks=["\x1b[2Jevil"])
    bar.write(StepRecord(1, "grpo", {"reward/\x1b[2Jevil": 1.0}))
    bar.close()
    assert "evil" in screen.last
    assert "[2J" not in screen.last


def test_plain_lines_now_and_then_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EventLog(RunDir(tmp_path), console=Console(file=io.StringIO()))
    bar = log.progress("grpo", 0, 60, ["one"])
    for step in range(1, 61):
        bar.write(record(step))
    bar.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["1/60", "25/60", "50/60", "60/60"]
    assert lines[0] == ("grpo 1/60  reward +0.100  entropy 1.250  KL 0.0125  dead groups 25%  s/step 0.50")


def test_slow_steps_have_a_line_each_half_minute_and_evaluations_one_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("levelhead.terminal.time.monotonic", lambda: clock[0])
    log = EventLog(RunDir(tmp_path), console=Console(file=io.StringIO()))
    bar = log.progress("grpo", 0, 60, ["one"])
    for step in range(1, 10):
        clock[0] += 12
        bar.write(record(step))
    log.scoring(64)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == ["1/60", "3/60", "6/60", "9/60"]
    assert lines[-1] == "scoring 64 held-out items per task ..."


def test_in_a_notebook_one_output_is_drawn_anew_and_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs: list[notebook.Html] = []

    class Cell:
        def update(self, content: notebook.Html) -> None:
            outputs.append(content)

    monkeypatch.setattr(notebook, "handle", Cell)
    log = EventLog(RunDir(tmp_path), console=Console(file=io.StringIO()))
    bar = log.progress("grpo", 0, 4, ["<b>one"])
    bar.write(StepRecord(1, "grpo", {"reward": 0.5, "reward/<b>one": 0.5}))
    assert capsys.readouterr().err == ""
    html = outputs[0]._repr_html_()
    assert '<progress value="1" max="4"></progress> 1/4' in html
    assert "<td>&lt;b&gt;one</td><td>+0.500</td>" in html


def test_a_plain_shell_is_no_notebook() -> None:
    assert notebook.handle() is None


def test_only_the_first_process_shows_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    console = Console(file=screen, width=80, force_terminal=True)
    bar = EventLog(RunDir(tmp_path), loud=False, console=console).progress("grpo", 0, 4, ["one"])
    bar.write(record(1))
    bar.close()
    assert capsys.readouterr().err == ""
    assert screen.last == ""


def test_the_block_and_the_lines_are_chinese_for_a_reader_of_chinese(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Screen()
    log = EventLog(RunDir(tmp_path), console=Console(file=screen, width=100, force_terminal=True), language="zh")
    bar = log.progress("grpo", 0, 40, ["one"])
    bar.write(record(8))
    log.write([Event(8, "gradient-spike", "warning", NOT_FINITE(), "skip")])
    bar.write(record(9))
    bar.close()
    shown = screen.last
    assert "奖励 +0.900  熵 1.250  KL 0.0125  零方差组 25%  秒/步 0.50" in shown
    assert "1 个警告\uff1b最近一次\uff1agradient-spike\uff0c第 8 步" in shown
    screen.seek(0)
    told = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.read())
    assert "levelhead: 第 8 步\uff0c警告 gradient-spike [跳过]\uff1a梯度不是有限值\uff1b已跳过这次更新。" in told
    assert "建议修改\uff1agrpo." in told
    # The run's file stays what every tool reads.
    assert "the update was skipped" in (tmp_path / "events.jsonl").read_text(encoding="utf-8")
    plain = ProgressSink("grpo", 0, 1, Console(file=io.StringIO()), language="zh")
    plain.write(record(1))
    assert capsys.readouterr().err == "grpo 1/1  奖励 +0.100  熵 1.250  KL 0.0125  零方差组 25%  秒/步 0.50\n"
