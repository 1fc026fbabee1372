"""What a run writes of its rollouts: each with the strata of its prompt and, of several turns, where each ends."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from levelhead.errors import InputError
from levelhead.records import Event, Group, Prompt, Rollout, Score, StepRecord, Turn
from levelhead.report.watch.rollouts import Filter, Rollouts
from levelhead.tasks.base import Task
from levelhead.training.rundir import RunDir


class Parity:
    """A task that tells the strata of its prompts, as far as :meth:`RunDir.save_rollouts` asks."""

    def strata(self, prompt: Prompt) -> Mapping[str, str]:
        return {"parity": "even" if int(prompt.id) % 2 == 0 else "odd"} if prompt.id.isdigit() else {}


def group(name: str, *texts: tuple[str, ...], task: str = "counting") -> Group:
    prompt = Prompt(name, task, ({"role": "user", "content": "Count."},))
    turn = Turn((1,), (2,), (0.0,), (0.0,), "stop")
    rollouts = [Rollout(name, (turn,) * len(text), Score(float(i)), text=text) for i, text in enumerate(texts)]
    return Group(prompt, tuple(rollouts))


def saved(folder: Path, *groups: Group, **more: Any) -> list[dict[str, Any]]:
    run = RunDir(folder)
    run.claim(resume=False)
    tasks = {"counting": cast(Task, Parity())}
    rows = run.save_rollouts("grpo-000001", "grpo", 1, groups, tasks, **more)
    with gzip.open(folder / "rollouts" / "grpo-000001.jsonl.gz", "rt", encoding="utf-8") as file:
        assert [json.loads(line) for line in file] == rows
    return rows


def test_each_rollout_stands_with_the_strata_of_its_prompt(tmp_path: Path) -> None:
    groups = (group("4", ("a",), ("b",)), group("7", ("c",)), group("none", ("d",)), group("4", ("e",), task="other"))
    rows = saved(tmp_path, *groups)
    assert [row.get("strata") for row in rows] == [{"parity": "even"}] * 2 + [{"parity": "odd"}, None, None]


def test_the_live_page_filters_by_the_strata_that_a_run_writes(tmp_path: Path) -> None:
    saved(tmp_path, group("4", ("a",), ("b",)), group("7", ("c",)))
    answer = Rollouts(tmp_path / "rollouts").page(Filter(stratum="parity=odd"))
    assert [row["completion"] for row in answer["rows"]] == ["c"]
    assert answer["strata"] == ["parity=even", "parity=odd"]


def test_advantages_stand_beside_their_rollouts(tmp_path: Path) -> None:
    rows = saved(tmp_path, group("4", ("a",), ("b",)), group("7", ("c",)), advantages=[[-0.5, 0.5], [0.25]])
    assert [row["advantage"] for row in rows] == [-0.5, 0.5, 0.25]


def test_the_turns_of_an_episode_can_be_parted_again(tmp_path: Path) -> None:
    turns = ("click(1)", "two\n\nparagraphs", "")
    episode, answer = saved(tmp_path, group("4", turns, ("one\n\nturn",)))
    assert episode["completion"] == "click(1)\n\ntwo\n\nparagraphs\n\n"
    assert episode["turns"] == [8, 15, 0]
    assert "turns" not in answer


def appended(folder: Path, steps: int = 3) -> RunDir:
    """A folder with metrics of some steps and one event."""
    folder.mkdir(exist_ok=True)
    run = RunDir(folder)
    run.append(
        "metrics.jsonl", [StepRecord(step, "grpo", {"loss": step / 10, "step_time": 9.0}) for step in range(steps)]
    )
    run.append("events.jsonl", [Event(1, "note", "info", "hello")])
    return run


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def another_runs(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**row, "step": 7}) + "\n" for row in rows) + "x" * 99)


def line_changed(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + "#" * (len(lines[1]) - 1) + "\n" + "".join(lines[2:]))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (Path.unlink, r"metrics\.jsonl: is missing, and held \d+ bytes at step-000003"),
        (truncated, r"metrics\.jsonl: holds \d+ of the \d+ bytes at step-000003"),
        (line_changed, r"metrics\.jsonl: line 2 is damaged: no JSON object"),
        (lambda path: path.write_text("[]\n" * 200), r"metrics\.jsonl: (line 1 is damaged|no line ends)"),
        (
            lambda path: path.write_bytes(b"\xff" * 4000 + b"\n"),
            r"metrics\.jsonl: no line ends where step-000003 left it",
        ),
        (another_runs, r"metrics\.jsonl: .*(another one|another run's)"),
    ],
)
def test_nothing_is_cut_before_the_files_are_what_the_checkpoint_left(
    tmp_path: Path, damage: Callable[[Path], object], why: str
) -> None:
    run = appended(tmp_path)
    sizes, last_row = run.sizes(), run.last_row()
    run.append("metrics.jsonl", [StepRecord(3, "grpo", {"loss": 0.3})])
    run.check(tmp_path / "step-000003", sizes, last_row)
    damage(tmp_path / "metrics.jsonl")
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.jsonl")}
    with pytest.raises(InputError, match=why):
        run.check(tmp_path / "step-000003", sizes, last_row)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.jsonl")} == before


def test_older_checkpoints_know_no_row_and_seconds_tell_no_runs_apart(tmp_path: Path) -> None:
    run = appended(tmp_path / "one")
    run.check(tmp_path / "step-000003", run.sizes(), "")
    (tmp_path / "two").mkdir()
    other = RunDir(tmp_path / "two")
    other.append("metrics.jsonl", [StepRecord(2, "grpo", {"loss": 0.2, "step_time": 1.0})])
    assert other.last_row() == run.last_row() != ""
    assert RunDir(tmp_path / "none").last_row() == ""


def test_a_damaged_row_is_named_when_records_are_read_back(tmp_path: Path) -> None:
    run = appended(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "grpo"}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl: line 4 is no record of a step"):
        list(run.steps("grpo"))
