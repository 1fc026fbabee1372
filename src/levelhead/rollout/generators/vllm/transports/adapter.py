"""The LoRA adapter alone, under a new name for every version: nothing is paused, and no cache can be stale."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from levelhead.documents.modes import open_to_readers
from levelhead.policy.policy import Policy
from levelhead.recipe.generator import Vllm
from levelhead.rollout.generators.vllm import peers
from levelhead.rollout.generators.vllm.client import HangsError, RefusedError, ServerLostError
from levelhead.rollout.generators.vllm.servers import LOOK_S, Server, each, no_such_route
from levelhead.rollout.generators.vllm.transports.base import Payload
from levelhead.rollout.generators.vllm.transports.files import shared_folder

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


class AdapterTransport:
    """Writes the adapter to the shared folder, and has it loaded.

    Args:
        section: The recipe's ``generator``.
    """

    in_place: ClassVar[bool] = False

    def __init__(self, section: Vllm) -> None:
        self._name, self._folder = section.model, shared_folder(section)

    def prepare(self, policy: Policy, label: str) -> Payload:
        """Write the adapter to a folder of its own; where it is divided, all processes take part."""
        folder = self._folder / f"adapter-{label}"
        if policy.sharded or peers.is_first():
            policy.save_adapter(folder)
        if peers.is_first():
            open_to_readers(folder)  # the servers may be another user's
        return Payload(label, {"lora_path": str(folder)})

    async def send(self, servers: Sequence[Server], payload: Payload, seconds: float) -> None:
        """Have every server load the adapter within so many seconds, under the name of its version."""
        body = {"lora_name": self.model(payload.label), **payload.update}

        async def load(server: Server) -> None:
            try:
                await server.client.control(LOAD, seconds, body)
            except RefusedError as error:
                if error.status == 404 and "adapter" not in error.said.lower():
                    raise no_such_route(server, LOAD) from error
                if "already" not in error.said:
                    raise

        await each(servers, load)

    async def holds(self, server: Server, label: str) -> bool:
        """Whether the server lists the adapter."""
        listed = await server.client.control("/v1/models", LOOK_S, method="GET")
        rows = listed.get("data", ()) if isinstance(listed, dict) else ()
        return any(isinstance(row, dict) and row.get("id") == self.model(label) for row in rows)

    def model(self, label: str) -> str:
        """The adapter's name: that of the model and the version."""
        return f"{self._name}@{label}"

    async def drop(self, servers: Sequence[Server], payload: Payload) -> None:
        """Have the adapter unloaded, and remove its files; what cannot be unloaded costs memory alone."""

        async def unload(server: Server) -> None:
            with contextlib.suppress(RefusedError, HangsError, ServerLostError):
                await server.client.control(UNLOAD, LOOK_S, {"lora_name": self.model(payload.label)})

        await each(servers, unload)
        if peers.is_first():
            shutil.rmtree(Path(payload.update["lora_path"]), ignore_errors=True)
