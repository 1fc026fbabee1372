"""Two processes that draw on servers make the run of one process, and none of them holds whole weights."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sharded_run
import small_run
from fake_engine import FakeEngine
from levelhead import train
from levelhead.errors import EngineError
from levelhead.recipe import validate
from levelhead.training.prepare import prepare
from night import by_night
from sharded_run import assert_same_numbers
from small_run import events, metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SFT = {"steps": 1, "batch_size": 4, "optimizer": {"learning_rate": 3e-3}}
LORA = {"r": 4, "alpha": 8}
ENOUGH = {"grpo__sampling": {"max_new_tokens": 10}, "eval__sampling": {"max_new_tokens": 10}}
"""Tokens for every perfect answer."""


@pytest.fixture(scope="module")
def launcher() -> Iterator[sharded_run.Launcher]:
    process = sharded_run.Launcher()
    yield process
    process.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as servers begin with it: that of the recipe's seed."""
    folder = tmp_path_factory.mktemp("model")
    prepare(validate(small_run.recipe(folder, model__tiny__layers=1))).policy.save(folder / "policy")
    return folder / "policy"


def served(folder: Path, *engines: FakeEngine, sync: str = "files", **changes: Any) -> dict[str, Any]:
    """Three groups an update for two processes; weights and the reference are divided."""
    generator = {"kind": "vllm", "urls": [each.url for each in engines], "shared": str(folder / "shared"), "sync": sync}
    settled = {
        "model__tiny__layers": 1,
        "model__lora": LORA if sync == "adapter" else None,
        "sft": None,
        "grpo__steps": 3,
        "grpo__batch_size": 9,
        "grpo__updates_per_batch": 1,
        "grpo__loss": {"importance": "token_truncate"},
        "grpo__optimizer__eps": 1e-3,
        "grpo__merge__kind": "cagrad",
        "eval": {"items": 2, "final_items": 2, "sampling": {"max_new_tokens": 2}, "constant": False},
        "distributed": {"shard": "full", "timeout_s": 60},
        "generator": {**generator, "sync_timeout_s": 30, "timeout_s": 30},
        **changes,
    }
    if sync != "adapter":
        settled.pop("model__lora")
    return small_run.recipe(folder, **settled)


def together(launcher: sharded_run.Launcher, folder: Path, *runs: tuple[str, dict[str, Any], str | None]) -> None:
    """Let two processes make some runs, one after the other: new ones, or from a checkpoint on ("" for the newest)."""
    (folder / "runs.json").write_text(json.dumps(runs), encoding="utf-8")
    codes = launcher.run("trains", folder, 2)
    assert codes == [0, 0], [(folder / f"trains-{rank}.err").read_text(encoding="utf-8")[-3000:] for rank in (0, 1)]


@pytest.mark.parametrize("sync", ["files", "adapter"])
def test_two_processes_on_a_server_make_the_run_of_one(
    launcher: sharded_run.Launcher, model: Path, tmp_path: Path, sync: str
) -> None:
    with FakeEngine(model) as engine:
        content = served(tmp_path, engine, sync=sync)
        together(launcher, tmp_path, ("two", content, None))
        sends = "/update_weights" if sync == "files" else "/v1/load_lora_adapter"
        syncs = engine.calls.count(sends)
        train(content, out=tmp_path / "one")
        assert engine.calls.count(sends) == 2 * syncs > 2, "the first process alone sends"
    assert_same_numbers(tmp_path / "one", tmp_path / "two")
    rows = [row for row in metrics(tmp_path / "two") if "engine/mismatch/mean" in row]
    assert max(row["engine/mismatch/mean"] for row in rows) <= 1e-5
    held = [json.loads((tmp_path / f"held-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    assert held == ["host", "shape"], "the first process alone has loaded weights"


def test_a_server_that_dies_is_left_out_by_both_and_the_last_one_ends_both(
    launcher: sharded_run.Launcher, model: Path, tmp_path: Path
) -> None:
    with FakeEngine(model) as first, FakeEngine(model) as second, FakeEngine(model) as only:
        content, alone = served(tmp_path, first, second), served(tmp_path, only, checkpoint__every=1)
        train(served(tmp_path, second), out=tmp_path / "one")
        train(alone, out=tmp_path / "whole")
        only.dies_after = only.served + only.served // 2
        only.restart()
        first.dies_after = 20
        together(launcher, tmp_path, ("two", content, None), ("broken", alone, None))
        assert_same_scores(tmp_path / "one", tmp_path / "two")
        assert "engine-server-lost" in {event["code"] for event in events(tmp_path / "two")}
        for rank in (0, 1):
            error = (tmp_path / f"broken-{rank}.txt").read_text(encoding="utf-8")
            assert error.startswith(EngineError.__name__), error
            assert "start it again and resume" in error
        only.come_back()
        together(launcher, tmp_path, ("broken", alone, ""))
        assert_same_scores(tmp_path / "whole", tmp_path / "broken")


def test_the_first_process_checks_alone_and_the_run_is_the_one_without_a_preflight(
    launcher: sharded_run.Launcher, model: Path, tmp_path: Path
) -> None:
    with FakeEngine(model) as engine:
        groups = {"grpo__steps": 1, "grpo__group_size": 8, "grpo__batch_size": 24}
        plain = served(tmp_path, engine, **groups, **ENOUGH)
        together(launcher, tmp_path, ("plain", plain, None))
        engine.restart()
        together(launcher, tmp_path, ("checked", {**plain, "check": True}, None))
    loads = [json.loads((tmp_path / f"loads-{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    assert loads == [["whole", "host"], ["shape", "shape"]], "the second never has whole weights"
    for name in ("checked", "checked.rank-1"):
        checks = json.loads((tmp_path / name / "check.json").read_text(encoding="utf-8"))
        assert {check["name"].partition("/")[0] for check in checks} > {"tokens", "signs", "data"}
    assert_same_numbers(tmp_path / "plain", tmp_path / "checked")


def test_two_processes_draw_ahead_on_a_server_with_whole_weights_and_with_divided_ones(
    launcher: sharded_run.Launcher, model: Path, tmp_path: Path
) -> None:
    with FakeEngine(model) as engine:
        ahead = served(tmp_path, engine, grpo__async=2, grpo__steps=4)
        whole = {**ahead, "distributed": {"shard": "none", "timeout_s": 60}}
        together(launcher, tmp_path, ("divided", ahead, None))
        engine.restart()
        together(launcher, tmp_path, ("whole", whole, None))
    for name in ("divided", "whole"):
        rows = small_run.steps(tmp_path / name, "grpo")
        assert [repr(row) for row in rows] == [
            repr(row) for row in small_run.steps(tmp_path / f"{name}.rank-1", "grpo")
        ]
        assert [row["num_rollouts"] for row in rows] == [9] * 4
        assert max(row["staleness/mean"] for row in rows) > 0
        assert max(row["staleness/max"] for row in rows) <= 2
        assert all(math.isfinite(row[key]) for row in rows for key in ("loss", "grad_norm"))
        told = [row["engine/mismatch/mean"] for row in metrics(tmp_path / name) if "engine/mismatch/mean" in row]
        assert len(told) >= 3, "weights go to the server while groups are drawn"
        assert max(told) <= 1e-5


@pytest.mark.parametrize("sync", [pytest.param("files", marks=by_night), "adapter"])
def test_a_run_that_one_process_began_is_gone_on_with_by_two_that_hand_its_weights_out(
    launcher: sharded_run.Launcher, model: Path, tmp_path: Path, sync: str
) -> None:
    """Its checkpoints are whole: no shards, and with an adapter also the reference's, which the run was begun with."""
    with FakeEngine(model) as engine:
        content = served(tmp_path, engine, sync=sync, sft=SFT, checkpoint__every=1, checkpoint__keep_last=4)
        train(content, out=tmp_path / "one")
        assert not list((tmp_path / "one").glob("checkpoints/*/shards"))
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        engine.restart()
        together(launcher, tmp_path, ("two", content, "step-000003"))  # of one SFT step and three
    assert json.loads((tmp_path / "held-1.json").read_text(encoding="utf-8")) == "shape"
    assert [row["step"] for row in metrics(tmp_path / "two")] == [row["step"] for row in metrics(tmp_path / "one")]
    assert_same_scores(tmp_path / "one", tmp_path / "two")
    last, wanted = (small_run.steps(tmp_path / name, "grpo")[-1] for name in ("two", "one"))
    assert last["step"] == 3
    for name in ("loss", "grad_norm", "kl", "merge/weight/one"):
        assert last[name] == pytest.approx(wanted[name], rel=2e-3, abs=2e-5), name


def test_what_goes_wrong_with_a_sync_has_its_name_in_every_process(
    launcher: sharded_run.Launcher, model: Path, tmp_path: Path
) -> None:
    with FakeEngine(model, "keeps_head") as headless, FakeEngine(model) as halved:
        halved.faults_at = {2: "breaks_off"}
        runs = (("headless", served(tmp_path, headless), None), ("halved", served(tmp_path, halved), None))
        together(launcher, tmp_path, *runs)
    for name, says in (("headless", "lm_head of the sync before"), ("halved", "breaks off a weight sync")):
        for rank in (0, 1):
            assert says in (tmp_path / f"{name}-{rank}.txt").read_text(encoding="utf-8")


def assert_same_scores(one: Path, other: Path) -> None:
    rows, others = (metrics(folder)[-1] for folder in (one, other))
    scores = {name: value for name, value in rows.items() if name.startswith("eval/")}
    assert scores
    assert {name: others[name] for name in scores} == pytest.approx(scores, rel=2e-3, abs=2e-5, nan_ok=True)
