"""``levelhead train`` with the endpoint executor: a server that dies in the middle, a budget that is used up."""

from __future__ import annotations

import gzip
import json
import logging
import sqlite3
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from levelhead.api import train
from levelhead.cli.main import app
from levelhead.errors import InputError, RewardError
from levelhead.recipe import load
from parrot_server import MODEL, ParrotServer
from sandboxed import can_run

pytestmark = [
    pytest.mark.timeout(900),
    can_run,
]

STEPS, BATCH, HELD_OUT = 4, 8, 4
CACHE = "replies.sqlite"


def write_recipe(folder: Path, url: str) -> Path:
    """A policy that is taught a little and reinforced a little, its workflows run by the server."""
    shape = {"hidden_size": 48, "layers": 2, "heads": 2, "kv_heads": 1, "intermediate_size": 96}
    executor = {
        "kind": "endpoint",
        "base_url": url,
        "model": MODEL,
        "max_tokens": 24,
        "concurrency": 3,
        "backoff_s": 0.2,
        "patience_s": 300,
        "cache": str(folder / CACHE),
    }
    task = {"kind": "workflow", "items": 90, "demonstrations": "varied", "executor": executor, "domains": {"qa": 1}}
    task["limits"] = {"calls": 5}
    recipe = {
        "name": "endpoint",
        "check": False,
        "threads": 1,
        "model": {"preset": "tiny", "tiny": {**shape, "vocab_size": 512, "context": 256}},
        "tasks": [{**task, "sandbox": {"cpu_s": 1, "wall_s": 60, "isolation": "none"}}],
        "sft": {"steps": 40, "batch_size": 16, "optimizer": {"learning_rate": 6e-3, "warmup_steps": 10}},
        "grpo": {"steps": STEPS, "batch_size": BATCH, "group_size": 4, "sampling": {"max_new_tokens": 24}},
        "eval": {"every": 2, "items": 3, "final_items": HELD_OUT, "sampling": {"max_new_tokens": 24}},
        "checkpoint": {"every": 0},
        "log": {"rollouts_every": 1, "rollouts": BATCH},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


class Interruption(threading.Thread):
    """Kills a server once a run has made its first step, and starts it again once the run has noticed.

    Attributes:
        seen: Steps that the run had made when the server came back.
    """

    def __init__(self, server: ParrotServer, run: Path) -> None:
        super().__init__(daemon=True)
        self.server, self.run_folder, self.seen = server, run, STEPS
        self.silence = threading.Event()

    def run(self) -> None:
        while not lines(self.run_folder, "grpo"):
            time.sleep(0.01)
        noticed = logging.Handler()
        noticed.emit = lambda record: self.silence.set() if "does not answer" in record.getMessage() else None  # type: ignore[method-assign]
        logging.getLogger("levelhead").addHandler(noticed)
        self.server.kill()
        self.silence.wait(300)
        logging.getLogger("levelhead").removeHandler(noticed)
        self.seen = len(lines(self.run_folder, "grpo"))
        self.server.start()


def lines(run: Path, stage: str) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0] if path.is_file() else ""
    return [row for row in map(json.loads, filter(None, whole.split("\n"))) if row["stage"] == stage]


def rollouts(run: Path, step: int) -> list[dict[str, Any]]:
    with gzip.open(run / "rollouts" / f"grpo-{step:06d}.jsonl.gz", "rt", encoding="utf-8") as file:
        return list(map(json.loads, file))


def replies(cache: Path) -> int:
    with sqlite3.connect(cache) as db:
        return int(db.execute("SELECT COUNT(*) FROM replies").fetchone()[0])


def learnt(run: Path) -> list[dict[str, Any]]:
    """What steps say of rollouts and weights, without seconds and without who was asked how often."""
    return [
        {k: v for k, v in row.items() if k != "step_time" and not k.startswith("time/") and "/endpoint/" not in k}
        for row in [*lines(run, "grpo"), *lines(run, "eval")]
    ]


@pytest.mark.slow
def test_a_server_killed_and_restarted_in_a_run_costs_no_rollout_and_counts_none_twice(
    parrot: ParrotServer, tmp_path: Path
) -> None:
    recipe, out = write_recipe(tmp_path, f"http://127.0.0.1:{parrot.port}/v1"), tmp_path / "run"
    interruption = Interruption(parrot, out)
    interruption.start()
    result = CliRunner().invoke(app, ["train", str(recipe), "--out", str(out)])
    assert result.exit_code == 0, result.output
    interruption.join(60)
    assert interruption.seen < STEPS, "the run was over before the server died"

    # No rollout lost: every step has all of its rollouts, none dropped.
    steps = lines(out, "grpo")
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    assert all(row["dropped_rollouts"] == 0 for row in steps)
    for step in range(1, STEPS + 1):
        saved = rollouts(out, step)
        assert len(saved) == BATCH
        assert set(Counter(row["prompt_id"] for row in saved).values()) == {4}
    assert any(row["valid"] for step in range(1, STEPS + 1) for row in rollouts(out, step))

    # None counted twice: the replies that were counted are those on disk.
    last = lines(out, "eval")[-1]
    assert last["eval/workflow/endpoint/calls"] == replies(tmp_path / CACHE)
    assert last["eval/workflow/endpoint/retries"] > 0

    # A clear word, in the terminal and on record.
    assert "does not answer" in result.stderr
    assert "answers again" in result.stderr
    events = map(json.loads, (out / "events.jsonl").read_text(encoding="utf-8").splitlines())
    silent, back = [event["message"] for event in events if event["code"] == "endpoint"]
    assert "none is lost" in silent
    assert "answers again" in back

    # The same run from the replies on disk alone, without any server, is the same run.
    parrot.kill()
    assert train(recipe, out=tmp_path / "again").outcome == "done"
    assert learnt(tmp_path / "again") == learnt(out)
    assert lines(tmp_path / "again", "eval")[-1]["eval/workflow/endpoint/calls"] == 0


def test_a_run_whose_budget_is_used_up_is_saved_and_ends_like_one_that_was_left_alone(
    parrot: ParrotServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levelhead.report.write", lambda _folder: None)
    recipe = write_recipe(tmp_path, f"http://127.0.0.1:{parrot.port}/v1")
    train(recipe, out=tmp_path / "whole")
    needed = replies(tmp_path / CACHE)
    (tmp_path / CACHE).unlink()

    budget = needed * 2 // 3
    short = load(recipe, [f"tasks.0.executor.max_calls={budget}"])
    with pytest.raises(RewardError, match=f"max_calls is {budget}") as caught:
        train(short, out=tmp_path / "run")
    assert "continue with --resume" in caught.value.__notes__[0]
    assert 0 < len(lines(tmp_path / "run", "grpo")) < STEPS
    assert replies(tmp_path / CACHE) == budget

    with pytest.raises(InputError, match=r"tasks\.0\.executor\.max_calls"):
        train(recipe, out=tmp_path / "run", resume=True)
    accept = ["tasks.0.executor.max_calls"]
    assert train(recipe, out=tmp_path / "run", resume=True, accept_changes=accept).outcome == "done"
    assert learnt(tmp_path / "run") == learnt(tmp_path / "whole")
    assert replies(tmp_path / CACHE) == needed
