"""``levelhead train`` with the endpoint executor: a server that dies in the middle, a budget that is used up."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from chat_server import Server, needs_server, tiny_model
from levelhead.tasks.workflow.sandbox import run_program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    needs_server,
    pytest.mark.skipif(run_program("").status == "refused", reason="programs cannot run here"),
]

STEPS, BATCH, HELD_OUT = 6, 12, 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def server(model: Path, tmp_path: Path) -> Iterator[Server]:
    one = Server(model, tmp_path / "server.log")
    one.start()
    yield one
    one.kill()


def write_recipe(folder: Path, server: Server, name: str) -> Path:
    """A policy that is taught a little and reinforced a little, its workflows run by the server."""
    shape = {"hidden_size": 48, "layers": 2, "heads": 2, "kv_heads": 1, "intermediate_size": 96}
    executor = {
        "kind": "endpoint",
        "base_url": f"http://127.0.0.1:{server.port}/v1",
        "model": str(server.model),
        "max_tokens": 24,
        "concurrency": 3,
        "backoff_s": 0.2,
        "patience_s": 300,
        "cache": str(folder / f"{name}.sqlite"),
    }
    task = {"kind": "workflow", "items": 90, "demonstrations": "varied", "executor": executor, "limits": {"calls": 5}}
    recipe = {
        "name": name,
        "check": False,
        "threads": 1,
        "model": {"preset": "tiny", "tiny": {**shape, "vocab_size": 512, "context": 256}},
        "tasks": [{**task, "sandbox": {"cpu_s": 1, "wall_s": 60}}],
        "sft": {"steps": 90, "batch_size": 16, "optimizer": {"learning_rate": 6e-3, "warmup_steps": 10}},
        "grpo": {"steps": STEPS, "batch_size": BATCH, "group_size": 4, "sampling": {"max_new_tokens": 24}},
        "eval": {"every": 3, "items": 3, "final_items": HELD_OUT, "sampling": {"max_new_tokens": 24}},
        "checkpoint": {"every": 0},
        "log": {"rollouts_every": 1, "rollouts": BATCH},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


class Training:
    """``levelhead train`` in a process of its own."""

    def __init__(self, recipe: Path, out: Path, *more: str) -> None:
        self.out = out
        command = [sys.executable, "-m", "levelhead.cli", "train", str(recipe), "--out", str(out), *more]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)

    def wait_for_step(self, step: int) -> None:
        while len(self.rows("grpo")) < step:
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.05)

    def end(self) -> tuple[int, str]:
        said = self.process.communicate(timeout=600)[1]
        return self.process.returncode, said

    def rows(self, stage: str) -> list[dict[str, Any]]:
        path = self.out / "metrics.jsonl"
        whole = path.read_text(encoding="utf-8").rpartition("\n")[0] if path.is_file() else ""
        return [row for row in map(json.loads, filter(None, whole.split("\n"))) if row["stage"] == stage]

    def events(self) -> list[dict[str, Any]]:
        path = self.out / "events.jsonl"
        return list(map(json.loads, path.read_text(encoding="utf-8").splitlines())) if path.is_file() else []

    def rollouts(self) -> dict[str, list[dict[str, Any]]]:
        found = {}
        for path in sorted((self.out / "rollouts").glob("*.jsonl.gz")):
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                found[path.name.removesuffix(".jsonl.gz")] = list(map(json.loads, lines))
        return found


def replies(cache: Path) -> int:
    with sqlite3.connect(cache) as db:
        return int(db.execute("SELECT COUNT(*) FROM replies").fetchone()[0])


def learnt(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a step says of rollouts and weights, without seconds and without who was asked how often."""
    return [
        {k: v for k, v in row.items() if k != "step_time" and not k.startswith("time/") and "/endpoint/" not in k}
        for row in rows
    ]


def test_a_server_killed_and_restarted_in_a_run_costs_no_rollout_and_counts_none_twice(
    server: Server, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, server, "killed")
    run = Training(recipe, tmp_path / "run")
    run.wait_for_step(2)
    server.kill()
    time.sleep(3.0)
    seen = len(run.rows("grpo"))
    server.start()
    code, said = run.end()
    assert code == 0, said
    assert seen < STEPS, "the run was over before the server died"

    # No rollout lost: every step has all of its rollouts, none dropped, and each is a draw of its own.
    rollouts = run.rollouts()
    assert [row["step"] for row in run.rows("grpo")] == list(range(1, STEPS + 1))
    assert all(row["dropped_rollouts"] == 0 for row in run.rows("grpo"))
    for step in range(1, STEPS + 1):
        kept = rollouts[f"grpo-{step:06d}"]
        assert len(kept) == BATCH
        assert set(Counter(row["prompt_id"] for row in kept).values()) == {4}
    assert any(row["valid"] for rows in rollouts.values() for row in rows)

    # None counted twice: the replies that were counted are those on disk.
    last = run.rows("eval")[-1]
    assert last["eval/workflow/endpoint/calls"] == replies(tmp_path / "killed.sqlite")
    assert last["eval/workflow/endpoint/retries"] > 0

    # A clear word, in the terminal and on record.
    assert "does not answer" in said
    assert "answers again" in said
    messages = [event["message"] for event in run.events() if event["code"] == "endpoint"]
    assert "none is lost" in messages[0]
    assert "answers again" in messages[1]

    # The same run from the replies on disk alone, without any server, is the same run.
    server.kill()
    again = Training(recipe, tmp_path / "again")
    code, said = again.end()
    assert code == 0, said
    assert learnt(again.rows("grpo")) == learnt(run.rows("grpo"))
    assert again.rows("eval")[-1]["eval/workflow/endpoint/calls"] == 0


def test_a_budget_that_is_used_up_stops_the_run_where_it_can_go_on(server: Server, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, server, "budget")
    whole = Training(recipe, tmp_path / "whole")
    assert whole.end()[0] == 0
    needed = replies(tmp_path / "budget.sqlite")
    (tmp_path / "budget.sqlite").unlink()

    run = Training(recipe, tmp_path / "run", "--set", f"tasks.0.executor.max_calls={needed * 2 // 3}")
    code, said = run.end()
    assert code == 3
    assert f"max_calls is {needed * 2 // 3}" in said
    assert "continue with --resume" in said
    assert 0 < len(run.rows("grpo")) < STEPS
    assert [event["action"] for event in run.events() if event["code"] == "rewards"] == ["stop"]
    assert replies(tmp_path / "budget.sqlite") <= needed * 2 // 3

    resumed = Training(recipe, tmp_path / "run", "--resume")
    code, said = resumed.end()
    assert code == 0, said
    assert learnt(resumed.rows("grpo")) == learnt(whole.rows("grpo"))
    assert replies(tmp_path / "budget.sqlite") == needed
