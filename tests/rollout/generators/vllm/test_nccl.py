"""Weights by broadcast: vLLM's own sender is played here, and what is ours around it must hold."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from fake_engine import FakeEngine
from levelhead.errors import EngineError, InputError
from levelhead.recipe.generator import Vllm
from levelhead.rollout.generators.make import make_generator
from levelhead.rollout.generators.vllm.client import Client
from levelhead.rollout.generators.vllm.servers import Server
from levelhead.rollout.generators.vllm.transports.nccl import NcclTransport
from small_run import tiny_policy

pytestmark = pytest.mark.timeout(120)


class Sender:
    """What vLLM's trainer side does: the servers are told in a thread, while the weights go out in this one."""

    servers: ClassVar[list[FakeEngine]] = []
    broken: ClassVar[threading.Event | None] = None
    opened: ClassVar[int] = 0

    def __init__(self, client: Any, source: Any) -> None:
        self.client, self.source = client, source

    @classmethod
    def trainer_init(cls, info: Any, *, client: Any, source: Any) -> Sender:
        cls.opened += 1
        client.init_weight_transfer_engine({"rank_offset": 1, "world_size": info.world_size})
        return cls(client, source)

    def send_weights(self) -> None:
        if self.broken is not None:
            self.broken.wait(60)
        weights = [(name, weight.clone()) for name, weight in self.source]
        assert [meta[0] for meta in self.source.metadata()] == [name for name, _ in weights]
        for server in self.servers:
            server.wire = weights
        self.client.start_weight_update()
        with ThreadPoolExecutor(1) as one:
            one.submit(self.client.update_weights, {"names": [name for name, _ in weights]}).result()
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        pass


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["vllm", "vllm.distributed", "vllm.distributed.weight_transfer"]
    modules = {name: ModuleType(name) for name in [*names, f"{names[-1]}.nccl_engine", f"{names[-1]}.base"]}
    engine: Any = modules[f"{names[-1]}.nccl_engine"]
    base: Any = modules[f"{names[-1]}.base"]
    engine.NCCLTrainerInitInfo, engine.NCCLTrainerWeightTransferEngine = SimpleNamespace, Sender
    base.WeightSource, base.ParamMeta = object, lambda *parts: parts
    holder: Any = modules[names[-1]]
    holder.nccl_engine = engine
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(Sender, "broken", None)
    monkeypatch.setattr(Sender, "opened", 0)


async def test_all_servers_join_one_group_with_ranks_of_their_own(
    played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tiny_policy()
    policy.save(tmp_path)
    with ExitStack() as stack:
        servers = [stack.enter_context(FakeEngine(tmp_path)) for _ in range(2)]
        monkeypatch.setattr(Sender, "servers", servers)
        one = make_generator(policy, None, Vllm(kind="vllm", urls=[s.url for s in servers], sync="nccl"))
        for _ in range(2):
            for weight in policy.parameters:
                weight.data.add_(0.02)
            await one.sync_weights()
        assert [server.group["rank_offset"] for server in servers] == [1, 3]
        assert {server.group["world_size"] for server in servers} == {5}
        assert Sender.opened == 1, "the group is opened once"
        assert {server.version for server in servers} == {servers[0].version}
        order = ["/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache"]
        assert [call for call in servers[1].calls if call in order] == order * 2
        await one.close()


async def test_vllms_sender_runs_with_the_trainers_device_as_the_current_one(
    played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for the current device, which is one of each thread: a new thread's is the first GPU."""
    current = threading.local()
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: setattr(current, "device", str(device)))

    class Noted(Sender):
        @classmethod
        def trainer_init(cls, info: Any, *, client: Any, source: Any) -> Sender:
            seen.append(("init", getattr(current, "device", "cuda:0")))
            return super().trainer_init(info, client=client, source=source)

        def send_weights(self) -> None:
            seen.append(("send", getattr(current, "device", "cuda:0")))
            super().send_weights()

    policy = tiny_policy()
    policy.save(tmp_path)
    with FakeEngine(tmp_path) as server:
        monkeypatch.setattr(Noted, "servers", [server])
        transport = NcclTransport(Vllm(kind="vllm", urls=[server.url], sync="nccl"))
        transport._vllm.NCCLTrainerWeightTransferEngine = Noted
        policy.device = torch.device("cuda:1")
        payload = transport.prepare(policy, "one")
        servers = [Server(Client(server.url, Vllm(kind="vllm", urls=[server.url], sync="nccl")))]
        await transport.send(servers, payload, 30)
        await servers[0].client.close()
    assert seen == [("init", "cuda:1"), ("send", "cuda:1")]


async def test_a_broadcast_that_nobody_joins_is_given_up(
    played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tiny_policy()
    policy.save(tmp_path)
    held = threading.Event()
    monkeypatch.setattr(Sender, "broken", held)
    with FakeEngine(tmp_path) as server:
        section = Vllm(kind="vllm", urls=[server.url], sync="nccl", sync_timeout_s=0.5)
        one = make_generator(policy, None, section)
        with pytest.raises(EngineError, match="NCCL broadcast") as error:
            await one.sync_weights()
        assert error.value.cause == "hangs"
        assert not server._paused
        await one.close()
    held.set()


def test_without_vllm_beside_the_trainer_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(InputError, match=r"generator\.sync: nccl.*files"):
        make_generator(tiny_policy(), None, Vllm(kind="vllm", urls=["http://h:1"], sync="nccl"))
