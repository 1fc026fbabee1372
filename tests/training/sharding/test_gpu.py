"""Divided weights on CUDA devices, over NCCL: on one device the passes, on two the run of one process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import yaml

import small_run
from levelhead import train
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.policy.sharding import full, shard_policy
from sharded_run import assert_same_numbers
from small_run import codec_ids, tiny_policy

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
one_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices, for a process each")


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.fixture
def alone_on_nccl(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A group of one process, whose collectives are NCCL's."""
    for key, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(key, value)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    yield
    dist.destroy_process_group()


def gradients(policy: Policy) -> dict[str, torch.Tensor]:
    ids = codec_ids()
    sequences = [TokenSequence(ids[:20], ids[20 + i : 30 + i], i) for i in range(3)]
    for micro in policy.pack(sequences, 256):
        policy.score(micro).logp.sum().backward()
    return {name: full(p.grad).cpu() for name, p in policy.model.named_parameters() if p.grad is not None}


@one_gpu
@pytest.mark.usefixtures("alone_on_nccl")
@pytest.mark.parametrize("lora", [None, {"r": 4, "alpha": 8}], ids=["full", "lora"])
def test_on_one_device_divided_weights_have_the_gradients_of_whole_ones(lora: dict[str, int] | None) -> None:
    want = gradients(tiny_policy(device="cuda", lora=lora))
    divided = gradients(shard_policy(tiny_policy(device="cuda", lora=lora), samples=False))
    assert divided.keys() == want.keys()
    for name, gradient in want.items():
        torch.testing.assert_close(divided[name], gradient, rtol=1e-4, atol=1e-5)


@two_gpus
@pytest.mark.parametrize("lora", [None, {"r": 4, "alpha": 8}], ids=["full", "lora"])
def test_two_devices_make_the_run_of_one(tmp_path: Path, lora: dict[str, int] | None) -> None:
    content = small_run.recipe(
        tmp_path,
        model__device="cuda",
        model__lora=lora or {},
        sft=None,
        grpo__batch_size=9,
        grpo__updates_per_batch=1,
        grpo__merge__kind="cagrad",
        grpo__optimizer__eps=1e-3,
        distributed={"shard": "full", "timeout_s": 120},
    )
    if lora is None:
        del content["model"]["lora"]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()),
        *("-m", "levelhead.cli", "train", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "two")),
    ]
    subprocess.run(command, check=True, timeout=500, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    train(content, out=tmp_path / "one")
    assert_same_numbers(tmp_path / "one", tmp_path / "two")
