"""A real run whose reward function uses everything that TRL hands to it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from levelhead.api import Result, train
from levelhead.errors import RewardError
from levelhead.report import write
from reward_runs import SMALL, one_task
from small_run import metrics, recipe, steps, write_rows


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are written by the tests that look at one."""
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)


EVERYTHING = """
import asyncio, json, pathlib

SEEN = pathlib.Path(__file__).with_name("seen.jsonl")


def kinds(values):
    return sorted({type(value).__name__ for value in values})


def note(name, prompts, completions, completion_ids, trainer_state, columns):
    n = len(completions)
    assert all(len(values) == n for values in (prompts, completion_ids, *columns.values()))
    assert all(isinstance(i, int) for ids in completion_ids for i in ids)
    state = [trainer_state.global_step, trainer_state.max_steps, trainer_state.epoch]
    row = {"name": name, "n": n, "state": state, "prompts": kinds(prompts), "completions": kinds(completions)}
    row |= {"columns": {key: values[0] for key, values in columns.items()}}
    row |= {"process": trainer_state.is_world_process_zero}
    with SEEN.open("a") as file:
        file.write(json.dumps(row) + "\\n")


def by_length(prompts, completions, completion_ids, trainer_state, log_extra, log_metric, **columns):
    note("by_length", prompts, completions, completion_ids, trainer_state, columns)
    lengths = [len(ids) for ids in completion_ids]
    log_extra("length_seen", lengths)
    for ids in completion_ids:  # bit by bit, as TRL allows
        log_extra("odd", [{"first": ids[0], "share": float("nan")}])
    log_metric("lengths/mean", sum(lengths) / len(lengths))
    log_metric("lengths/longest", max(lengths))
    log_metric("reward", 99.0)  # a name that means something else
    log_metric("step", 99.0)
    log_metric("nothing", float("nan"))
    return [float(sum(ids) % 5) / 4 for ids in completion_ids]


async def by_chance(prompts, completions, completion_ids, trainer_state, log_metric=None, log_extra=None, **columns):
    note("by_chance", prompts, completions, completion_ids, trainer_state, columns)
    await asyncio.sleep(0)
    log_metric("asked", 2)
    return [None if sum(ids) % 3 else 0.5 for ids in completion_ids]


class Calls:
    def __call__(self, completions, level):
        return iter([float(one) for one in level])


calls = Calls()


def scheduled(completions, trainer_state):
    return [trainer_state.epoch] * len(completions)
"""


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("everything")
    given = one_task(folder, EVERYTHING, "by_length", "by_chance", "calls", "scheduled", eval__every=2)
    given["tasks"][0]["reward_weights"] = [1.0, 2.0, 0.0, 0.0]
    rows = [{"prompt": f"question {i}?", "answer": f"the number is {i}.", "level": i % 3} for i in range(12)]
    write_rows(folder / "one.jsonl", rows)
    return folder, train(given, out=folder / "run")


def seen(folder: Path, name: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]
    return [row for row in rows if row["name"] == name]


def test_a_reward_gets_prompts_completions_tokens_and_columns(everything: tuple[Path, Result]) -> None:
    folder, _ = everything
    for name in ("by_length", "by_chance"):
        for row in seen(folder, name):
            assert (row["prompts"], row["completions"], row["process"]) == (["str"], ["str"], True)
            assert set(row["columns"]) == {"answer", "level"}
    assert {row["n"] for row in seen(folder, "by_length")} == {1, 12}


def test_the_trainer_state_counts_the_steps_that_are_done_and_evaluations_are_all_scored_alike(
    everything: tuple[Path, Result],
) -> None:
    folder, _ = everything
    for name in ("by_length", "by_chance"):
        rows = seen(folder, name)
        assert [row["state"] for row in rows if row["n"] == 12] == [[i, 4, i / 4] for i in range(4)]
        assert [row["state"] for row in rows if row["n"] == 1] == [[4, 4, 1.0]] * 3


def test_logged_metrics_are_in_the_steps_metrics_under_their_own_names(everything: tuple[Path, Result]) -> None:
    _, result = everything
    rows = steps(result.folder, "grpo")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert row["lengths/mean"] == pytest.approx(row["completions/mean_length"])
        assert row["lengths/longest"] == row["completions/max_length"]
        assert row["asked"] == 2.0
        # What the run itself measures keeps its name, and what was logged is not lost.
        assert row["reward"] < 3
        assert row["logged/reward"] == row["logged/step"] == 99.0
        assert "nothing" not in row
    evaluated = [row for row in metrics(result.folder) if row["stage"] == "eval"]
    assert all(row["eval/one/asked"] == 2.0 for row in evaluated)
    assert result.summary["tasks"]["one"]["grpo"]["metrics"]["asked"] == 2.0


def test_extra_columns_are_kept_with_the_samples_as_json(everything: tuple[Path, Result]) -> None:
    _, result = everything
    for name in ("grpo-000002", "eval-grpo"):
        text = gzip.decompress((result.folder / "rollouts" / f"{name}.jsonl.gz").read_bytes()).decode()
        rows = [json.loads(line, parse_constant=lambda bare: pytest.fail(f"bare {bare}")) for line in text.splitlines()]
        assert rows
        assert all(row["info"]["length_seen"] == row["length"] for row in rows)
        assert all(row["info"]["odd"]["share"] == "nan" for row in rows)


def test_none_leaves_a_function_out_of_the_sum_and_weights_apply_to_the_rest(everything: tuple[Path, Result]) -> None:
    _, result = everything
    text = gzip.decompress((result.folder / "rollouts" / "grpo-000002.jsonl.gz").read_bytes()).decode()
    rows = [json.loads(line) for line in text.splitlines()]
    for row in rows:
        parts = row["parts"]
        assert row["reward"] == pytest.approx(parts["by_length"] + 2 * parts.get("by_chance", 0.0))
        assert parts["Calls"] in (0.0, 1.0, 2.0)
    for row in steps(result.folder, "grpo"):
        if "rewards/by_chance/mean" in row:  # over the answers that have it, as in TRL
            assert (row["rewards/by_chance/mean"], row["rewards/by_chance/std"]) == (0.5, 0.0)
        assert row["rewards/scheduled/mean"] == (row["step"] - 1) / 4
    write(result.folder)


def test_what_a_reward_logs_takes_no_more_room_as_the_run_goes_on() -> None:
    from levelhead.recipe.tasks import Function
    from levelhead.tasks.function import FunctionTask

    def chatty(completions: list[str], log_metric: Any, log_extra: Any) -> list[float]:
        log_metric("x", 1.0)
        log_extra("y", completions)
        return [1.0] * len(completions)

    made = FunctionTask(Function(kind="function"), data=[{"prompt": "a"}, {"prompt": "b"}], rewards=chatty)
    prompt = next(made.prompts("train", 0))
    quiet = made.rules
    assert quiet is not None
    for task in (made, quiet):
        for _ in range(100):
            task.score(prompt, "z")
    assert len(str(vars(made)["_tally"])) < 400
    assert len(str(vars(quiet)["_tally"])) < 400
    assert made.drain_tally().answers == 100  # what constant answers are scored for is not among it


def test_several_tasks_that_log_one_name_have_it_together_and_apart(tmp_path: Path) -> None:
    given = recipe(tmp_path, **SMALL, grpo__steps=1)
    source = (
        "def {0}(completions, log_metric):\n    log_metric('x', {1})\n    return [float(len(c)) for c in completions]\n"
    )
    file = tmp_path / "two.py"
    file.write_text(source.format("a", 1) + source.format("b", 3), encoding="utf-8")
    for task, name in zip(given["tasks"], "ab", strict=True):
        task["rewards"] = [f"{file}:{name}"]
    (row,) = steps(train(given, out=tmp_path / "run").folder, "grpo")
    assert (row["x"], row["x/one"], row["x/two"]) == (2.0, 1.0, 3.0)


@pytest.mark.parametrize("wrong", ["completions[1:]", "completions * 2", "iter(int, 1)"])
def test_extra_columns_of_another_length_are_an_error(tmp_path: Path, wrong: str) -> None:
    source = (
        f"def reward(completions, log_extra):\n    log_extra('column', {wrong})\n    return [1.0] * len(completions)\n"
    )
    with pytest.raises(RewardError, match=r"reward logged .* values of 'column' \(log_extra\) for 1 completions"):
        train(one_task(tmp_path, source), out=tmp_path / "run")
