"""All weights, from GPU to GPU, by vLLM's own trainer side of its NCCL weight transfer.

The collective runs on a daemon thread, so that a server that never joins it cannot keep the trainer from saying so.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar
from urllib.parse import urlparse

import httpx2
import torch
from torch import Tensor

from levelhead.errors import InputError
from levelhead.policy.policy import Policy
from levelhead.recipe.generator import Vllm
from levelhead.rollout.generators.vllm import peers
from levelhead.rollout.generators.vllm.client import HangsError, RefusedError, ServerLostError
from levelhead.rollout.generators.vllm.servers import LOOK_S, Server, each
from levelhead.rollout.generators.vllm.transports.base import Payload
from levelhead.rollout.generators.vllm.transports.files import InPlaceTransport
from levelhead.rollout.generators.vllm.weights import named_weights

T = TypeVar("T")


class NcclTransport(InPlaceTransport):
    """Broadcasts all weights over NCCL.

    Args:
        section: The recipe's ``generator``.

    Raises:
        InputError: vLLM is not installed here.
    """

    def __init__(self, section: Vllm) -> None:
        super().__init__(section)
        try:
            from vllm.distributed.weight_transfer import nccl_engine
        except ImportError as error:
            raise InputError(
                f"generator.sync: nccl uses vLLM's own sender, and vLLM cannot be imported here ({error}); install the "
                "servers' version of vllm beside the trainer, or set generator.sync to files"
            ) from None
        self._vllm: Any = nccl_engine
        self._engine: Any = None
        self._joined: tuple[str, ...] = ()
        self._device = torch.device("cpu")

    def prepare(self, policy: Policy, label: str) -> Payload:
        """Gather all weights before any is sent: a gather between two broadcasts can wait for ever."""
        self._device = policy.device
        weights = [(name, weight.contiguous()) for name, weight in named_weights(policy)]
        return Payload(label, {"weights": weights if peers.is_first() else []})

    async def send(self, servers: Sequence[Server], payload: Payload, seconds: float) -> None:
        """Broadcast the weights; the servers' group is opened first, and anew where other servers are there."""
        weights: list[tuple[str, Tensor]] = payload.update["weights"]
        urls = tuple(server.url for server in servers)
        if urls != self._joined:
            await self._open(servers, weights, seconds)
            self._joined = urls
        self._engine.source = _source(weights)
        await _within(seconds, "the NCCL broadcast of the weights", self._engine.send_weights, self._device)

    async def drop(self, servers: Sequence[Server], payload: Payload) -> None:  # noqa: ARG002 - they hold a copy
        """Let go of the gathered weights."""
        payload.update["weights"] = []

    async def _open(self, servers: Sequence[Server], weights: list[tuple[str, Tensor]], seconds: float) -> None:
        """Open the group of this process and the workers of all servers."""
        if self._engine is not None:
            self._engine.shutdown()
        sizes = await each(servers, _world_size)
        host, port = _address(servers[0].url)
        info = self._vllm.NCCLTrainerInitInfo(master_address=host, master_port=port, world_size=1 + sum(sizes), rank=0)
        client = _Fanout([server.url for server in servers], sizes, seconds)

        def open_group() -> Any:
            engine = self._vllm.NCCLTrainerWeightTransferEngine
            return engine.trainer_init(info, client=client, source=_source(weights))

        self._engine = await _within(seconds, "the opening of the NCCL group", open_group, self._device)


class _Fanout:
    """Speaks to all servers of a group at once, as vLLM's sender expects one client to.

    Updates are begun and finished by the caller, which does the same for every transport.
    """

    def __init__(self, urls: Sequence[str], sizes: Sequence[int], seconds: float) -> None:
        self._urls, self._sizes, self._seconds = urls, sizes, seconds

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        offsets = [int(init_info["rank_offset"]) + sum(self._sizes[:i]) for i in range(len(self._urls))]
        self._post(
            "/init_weight_transfer_engine", [{"init_info": {**init_info, "rank_offset": offset}} for offset in offsets]
        )

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._post("/update_weights", [{"update_info": update_info}] * len(self._urls))

    def start_weight_update(self) -> None:
        """Do nothing: whoever pauses the servers has begun the update."""

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Do nothing: whoever paused the servers ends the update, with the version's label."""

    def shutdown_weight_transfer_engine(self) -> None:
        self._post("/shutdown_weight_transfer_engine", [{}] * len(self._urls))

    def _post(self, path: str, bodies: Sequence[dict[str, Any]]) -> None:
        threads = [_Thread(self._one(url, path, body)) for url, body in zip(self._urls, bodies, strict=True)]
        for thread in threads:
            thread.result.result(self._seconds)

    def _one(self, url: str, path: str, body: dict[str, Any]) -> Callable[[], None]:
        def post() -> None:
            try:
                answer = httpx2.post(f"{url}{path}", json=body, timeout=self._seconds, trust_env=False)
            except httpx2.TimeoutException as error:
                raise HangsError(f"POST {path} has not been answered for {self._seconds:g} s") from error
            except httpx2.HTTPError as error:
                raise ServerLostError(f"{type(error).__name__}: {error}") from error
            if not answer.is_success:
                raise RefusedError(path, answer.status_code, answer.text[:300])

        return post


class _Thread:
    """A daemon thread that computes one result.

    Args:
        work: Computes it.
        device: Current device of the thread: a new one begins with the first GPU, wherever the trainer is.
    """

    def __init__(self, work: Callable[[], T], device: torch.device | None = None) -> None:
        self.result: Future[Any] = Future()

        self.result.set_running_or_notify_cancel()  # whoever gives up waiting cannot cancel it

        def run() -> None:
            try:
                if device is not None and device.type == "cuda":
                    torch.cuda.set_device(device)
                self.result.set_result(work())
            except BaseException as error:
                self.result.set_exception(error)

        threading.Thread(target=run, name="levelhead-nccl", daemon=True).start()


async def _within(seconds: float, what: str, work: Callable[[], T], device: torch.device) -> T:
    """Wait for work on a daemon thread that uses a device.

    Raises:
        HangsError: It takes longer than ``seconds``.
    """
    try:
        result: T = await asyncio.wait_for(asyncio.wrap_future(_Thread(work, device).result), seconds)
    except TimeoutError as error:
        raise HangsError(f"{what} has not ended for {seconds:g} s") from error
    return result


async def _world_size(server: Server) -> int:
    reply = await server.client.control("/get_world_size", LOOK_S, method="GET")
    return int(reply["world_size"])


def _address(url: str) -> tuple[str, int]:
    """This machine's address as a server sees it, and a free port."""
    parts = urlparse(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname or "127.0.0.1", parts.port or 80))  # sends nothing: only a route is chosen
        host = str(probe.getsockname()[0])
    with socket.socket() as free:
        free.bind((host, 0))
        return host, int(free.getsockname()[1])


def _source(weights: list[tuple[str, Tensor]]) -> Any:
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Gathered(WeightSource):  # type: ignore[misc]
        """Weights that are there already."""

        def metadata(self) -> list[Any]:
            return [ParamMeta(name, weight.dtype, tuple(weight.shape)) for name, weight in weights]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return iter(weights)

    return Gathered()
