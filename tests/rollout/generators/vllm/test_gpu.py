"""On a real vLLM on CUDA devices: weights from GPU to GPU, a server beside the trainer, and one over two devices.

``LEVELHEAD_VLLM`` names the folder of an environment that holds ``vllm`` and this package; for ``sync: nccl`` vLLM is
needed beside the trainer as well (docs/scale.md).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vllm_server
from levelhead import train
from levelhead.policy.load import load_policy
from levelhead.recipe import validate
from levelhead.recipe.generator import Vllm
from levelhead.recipe.model import Model
from levelhead.rollout.generators.make import make_generator
from levelhead.rollout.generators.vllm.generator import VllmGenerator
from small_run import metrics

pytestmark = [pytest.mark.vllm, pytest.mark.gpu, pytest.mark.timeout(1200)]
one_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
two_gpus = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="needs two CUDA devices: a trainer's and a server's"
)
beside = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="sync: nccl needs vllm beside the trainer, and it is not there"
)

Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    processes = vllm_server.Processes(tmp_path)
    yield processes.start
    processes.close()


def on_gpu(folder: Path, url: str, sync: str, **engine: Any) -> dict[str, Any]:
    recipe = vllm_server.settings(folder, url, sync, **engine)
    recipe["model"]["device"] = "cuda"
    return recipe


def gaps(run: Path) -> list[float]:
    return [row["engine/mismatch/mean"] for row in metrics(run) if "engine/mismatch/mean" in row]


@two_gpus
@beside
def test_weights_that_are_broadcast_are_the_trainers(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # of the server; the trainer has seen both by now
    url = serve("nccl", cpu=False)
    train(on_gpu(tmp_path, url, "nccl"), out=tmp_path / "run")
    told = gaps(tmp_path / "run")
    assert len(told) >= 3
    assert max(told) <= 1e-3  # float32 kernels of two libraries on a GPU


@one_gpu
@pytest.mark.parametrize("sync", ["files", "adapter"])
def test_a_server_beside_the_trainer_holds_its_weights(serve: Serve, tmp_path: Path, sync: str) -> None:
    shared = {"gpu_share": 0.3, "sleep": True, "max_mismatch": 1e-3}
    url = serve(sync, cpu=False, **shared)
    train(on_gpu(tmp_path, url, sync, **shared), out=tmp_path / "run")
    assert max(gaps(tmp_path / "run")) <= 1e-3


@one_gpu
async def test_a_server_that_sleeps_gives_its_memory_up(serve: Serve, tmp_path: Path) -> None:
    shared = {"gpu_share": 0.3, "sleep": True, "max_mismatch": 1e-3}
    section = validate(on_gpu(tmp_path, serve("files", cpu=False, **shared), "files", **shared)).generator
    assert isinstance(section, Vllm)
    policy = load_policy(Model(preset="base-tiny", dtype="float32", device="cuda"), seed=0)
    one = make_generator(policy, None, section)
    assert isinstance(one, VllmGenerator)
    await one.sync_weights()
    awake, total = torch.cuda.mem_get_info()
    await one.rest()
    asleep, _ = torch.cuda.mem_get_info()
    assert asleep - awake > 0.2 * total, "most of its share of 0.3"
    await one.sync_weights()
    assert one.drain_use()["engine/mismatch/mean"] <= 1e-3
    await one.close()


@two_gpus
def test_a_server_over_two_devices_takes_the_weights(serve: Serve, tmp_path: Path) -> None:
    url = serve("files", cpu=False, options=["--tensor-parallel-size", "2"], gpu_share=0.3, max_mismatch=1e-3)
    train(on_gpu(tmp_path, url, "files", max_mismatch=1e-3), out=tmp_path / "run")
    assert max(gaps(tmp_path / "run")) <= 1e-3
