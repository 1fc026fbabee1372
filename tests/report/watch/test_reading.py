"""What the live page reads of a growing run: only what is new, and all of it again where the run went back."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from levelhead.errors import InputError
from levelhead.report.watch.rollouts import PAGE, PREVIEW, Filter, Rollouts
from levelhead.report.watch.run import WatchedRun, differences, find_runs
from levelhead.report.watch.tail import Curves, Tail
from synthetic_run import write_run


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def line(step: int, **values: Any) -> str:
    return json.dumps({"step": step, "stage": "grpo", **values}) + "\n"


def test_a_look_reads_what_was_written_since_the_last_one_and_leaves_a_half_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.look() == ([], False)
    append(path, line(1) + '{"step": 2')
    assert [row["step"] for row in tail.look()[0]] == [1]
    assert tail.look() == ([], False)
    append(path, ', "stage": "grpo"}\nno json\n' + line(3))
    assert [row["step"] for row in tail.look()[0]] == [2, 3]
    assert tail.broken == 1
    assert tail.offset == path.stat().st_size


@pytest.mark.parametrize("longer", [False, True])
def test_a_file_that_was_cut_is_read_again_from_its_beginning(tmp_path: Path, longer: bool) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(line(step) for step in range(1, 6)))
    tail = Tail(path)
    tail.look()
    steps = [1, 2, *range(30, 40)] if longer else [1, 2]
    path.write_text("".join(line(step) for step in steps))
    rows, anew = tail.look()
    assert anew
    assert [row["step"] for row in rows] == steps


def test_a_page_gets_the_points_that_it_does_not_have() -> None:
    curves = Curves()
    for step in (1, 2, 3):
        curves.add({"step": step, "stage": "grpo", "reward": step / 10})
    assert curves.since("grpo", "reward", 0, 2) == {"epoch": 0, "start": 2, "steps": [3], "values": [0.3]}
    assert curves.since("grpo", "nothing", 0, 0) is None


def test_a_step_that_is_written_again_takes_back_what_stood_from_there_on() -> None:
    curves = Curves()
    for step, reward in ((1, 0.1), (2, 0.2), (3, 0.3), (2, 0.9)):
        curves.add({"step": step, "stage": "grpo", "reward": reward})
    answer = curves.since("grpo", "reward", 0, 3)
    assert answer == {"epoch": 1, "start": 0, "steps": [1, 2], "values": [0.1, 0.9]}


def test_a_number_that_is_not_finite_is_a_gap_and_text_is_no_curve() -> None:
    curves = Curves()
    curves.add({"step": 1, "stage": "grpo", "kl": "nan", "entropy": math.inf, "note": "nan and more", "flag": True})
    assert curves.names() == {"grpo": ["kl", "entropy"]}
    answer = curves.since("grpo", "entropy", 0, 0)
    assert answer is not None
    assert answer["values"] == [None]


def test_held_out_curves_of_grpo_begin_with_what_was_measured_before_it(tmp_path: Path) -> None:
    run = WatchedRun(write_run(tmp_path / "run", steps=40), "run")
    run.look()
    answer = run.curves.since("grpo", "eval/fairness/score", 0, 0)
    assert answer is not None
    assert answer["steps"] == [0, 20, 40]
    assert answer["values"][0] == pytest.approx(0.14, abs=0.05)


def test_the_rollouts_of_a_run_are_paged_newest_first_and_files_wait_until_they_are_needed(tmp_path: Path) -> None:
    rollouts = Rollouts(write_run(tmp_path / "run", steps=120) / "rollouts")
    page = rollouts.page(Filter(), seconds=60)
    assert [row["step"] for row in page["rows"]] == [120] * 16 + [110] * 16 + [100] * 8
    assert (page["indexed"], page["files"], len(page["rows"])) == (3, 15, PAGE)
    seen = [(row["file"], row["line"]) for row in page["rows"]]
    while page["next"]:
        page = rollouts.page(Filter(), after=tuple(page["next"]), seconds=0)
        seen += [(row["file"], row["line"]) for row in page["rows"]]
    assert len(seen) == len(set(seen)) == page["rollouts"] == page["matching"] == 12 * 16 + 3 * 16
    assert page["indexed"] == 15


def everything(rollouts: Rollouts, wanted: Filter) -> list[dict[str, Any]]:
    page = rollouts.page(wanted, seconds=0)
    rows = list(page["rows"])
    while page["next"]:
        page = rollouts.page(wanted, after=tuple(page["next"]), seconds=0)
        rows += page["rows"]
    return rows


def test_rollouts_are_filtered_by_task_kind_step_reward_and_text(tmp_path: Path) -> None:
    rollouts = Rollouts(write_run(tmp_path / "run", steps=60) / "rollouts")
    assert {row["task"] for row in everything(rollouts, Filter(task="fairness"))} == {"fairness"}
    assert {row["stage"] for row in everything(rollouts, Filter(kind="eval"))} == {"eval"}
    assert {row["step"] for row in everything(rollouts, Filter(steps=(20, 40)))} == {20, 30, 40}
    low = everything(rollouts, Filter(kind="train", rewards=(None, -0.5)))
    assert low
    assert all(row["reward"] <= -0.5 for row in low)
    said = everything(rollouts, Filter(kind="train", text="OLD PEOPLE cannot"))
    assert said
    assert all("Old people cannot" in row["completion"] for row in said)
    assert everything(rollouts, Filter(text="nobody wrote this")) == []


def write_group(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_rollouts_are_filtered_by_stratum(tmp_path: Path) -> None:
    row = {"step": 1, "task": "t", "prompt_id": "p", "prompt": "x", "completion": "y", "reward": 1.0}
    rows = [{**row, "strata": {"level": level}} for level in ("easy", "hard", "hard")]
    write_group(tmp_path / "rollouts" / "grpo-000001.jsonl.gz", rows)
    rollouts = Rollouts(tmp_path / "rollouts")
    assert [r["strata"] for r in everything(rollouts, Filter(stratum="level=hard"))] == [{"level": "hard"}] * 2
    assert rollouts.page(Filter())["strata"] == ["level=easy", "level=hard"]


def test_a_new_file_stands_first_and_the_page_that_is_open_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=60) / "rollouts"
    rollouts = Rollouts(folder)
    page = rollouts.page(Filter(), seconds=60)
    last = page["rows"][-1]
    (folder / "grpo-000060.jsonl.gz").rename(folder / "grpo-000070.jsonl.gz")
    following = rollouts.page(Filter(), after=tuple(page["next"]), seconds=60)["rows"][0]
    assert (following["file"], following["line"]) == (last["file"], last["line"] + 1)


def test_a_group_stands_together_with_whole_texts_and_a_strange_name_reads_nothing(tmp_path: Path) -> None:
    long = "word " * PREVIEW
    row = {"step": 1, "task": "t", "prompt": "x", "completion": long, "reward": 1.0}
    rows = [{**row, "prompt_id": prompt, "advantage": a} for prompt, a in (("p", 0.5), ("q", 0.0), ("p", -0.5))]
    write_group(tmp_path / "rollouts" / "grpo-000001.jsonl.gz", rows)
    (tmp_path / "secret.jsonl").write_text(json.dumps({**row, "prompt_id": "p"}) + "\n")
    rollouts = Rollouts(tmp_path / "rollouts")
    group = rollouts.group("grpo-000001.jsonl.gz", "t", "p")
    assert [one["advantage"] for one in group] == [0.5, -0.5]
    assert group[0]["completion"] == long
    assert len(rollouts.page(Filter())["rows"][0]["completion"]) == PREVIEW
    assert rollouts.group("../secret.jsonl", "t", "p") == []


def test_a_damaged_file_is_said_and_the_others_are_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=30) / "rollouts"
    (folder / "grpo-000020.jsonl.gz").write_bytes(b"no archive")
    page = Rollouts(folder).page(Filter(kind="train"), seconds=60)
    assert {row["step"] for row in page["rows"]} == {10, 30}
    assert page["notes"] == ["grpo-000020.jsonl.gz: cut off; what could be read is shown"]


def test_findings_come_with_their_evidence_and_are_worked_out_again_when_the_log_grows(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    run = WatchedRun(folder, "run")
    run.look()
    said = run.findings()
    assert said["verdict"] == "critical"
    assert said["findings"][0]["for"]
    assert run.findings() is said
    text = (folder / "metrics.jsonl").read_text()
    append(folder / "metrics.jsonl", "".join(text.splitlines(keepends=True)[-6:]))
    run.look()
    assert run.findings() is not said


def test_events_are_sent_once(tmp_path: Path) -> None:
    run = WatchedRun(write_run(tmp_path / "run"), "run")
    run.look()
    first = run.events(0, 0)
    assert len(first["events"]) == 9
    append(run.folder / "events.jsonl", json.dumps({"step": 121, "code": "new"}) + "\n")
    run.look()
    assert [event["code"] for event in run.events(first["epoch"], 9)["events"]] == ["new"]


def test_recipes_are_compared_key_by_key(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, steps=10) for name in ("a", "b", "c")]
    recipe = folders[1] / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("seed: 7", "seed: 8"))
    runs = find_runs([tmp_path])
    assert [run.name for run in runs] == ["a", "b", "c"]
    assert differences(runs) == [{"key": "seed", "values": ["7", "8", "7"]}]


def test_runs_of_one_name_are_told_apart_and_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    for parent in ("x", "y"):
        (tmp_path / parent).mkdir()
        write_run(tmp_path / parent / "run", steps=10)
    assert [run.name for run in find_runs([tmp_path / "x", tmp_path / "y"])] == ["x/run", "y/run"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no run"):
        find_runs([tmp_path / "empty"])
    with pytest.raises(InputError, match="no such folder"):
        find_runs([tmp_path / "absent"])
