"""All weights, through a folder that trainer and servers share; the server's side is ``integrations/vllm``."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from levelhead.documents.modes import open_to_readers
from levelhead.errors import InputError
from levelhead.policy.policy import Policy
from levelhead.recipe.generator import Vllm
from levelhead.rollout.generators.vllm import peers
from levelhead.rollout.generators.vllm.client import RefusedError
from levelhead.rollout.generators.vllm.servers import LOOK_S, Server, each, no_such_route
from levelhead.rollout.generators.vllm.transports.base import Payload
from levelhead.rollout.generators.vllm.weights import named_weights

FILE_BYTES = 4 << 30
"""Size that one file of weights does not exceed by more than one weight."""


class InPlaceTransport:
    """What ways to replace a server's weights have in common."""

    in_place: ClassVar[bool] = True

    def __init__(self, section: Vllm) -> None:
        self._name = section.model

    def model(self, label: str) -> str:  # noqa: ARG002 - the name is the same for all versions
        """The model's name, whatever the version."""
        return self._name

    async def holds(self, server: Server, label: str) -> bool:
        """Whether the server names the version that it was given last."""
        try:
            info = await server.client.control("/weight_info", LOOK_S, method="GET")
        except RefusedError as error:
            if error.status == 404:
                raise no_such_route(server, "/weight_info") from error
            raise
        return isinstance(info, dict) and info.get("weight_version") == label


class FilesTransport(InPlaceTransport):
    """Writes all weights as safetensors, and has them read.

    Args:
        section: The recipe's ``generator``.
    """

    def __init__(self, section: Vllm) -> None:
        super().__init__(section)
        self._folder = shared_folder(section)

    def prepare(self, policy: Policy, label: str) -> Payload:
        """Write the weights, in files of a few GiB each."""
        from safetensors.torch import save_file

        paths: list[str] = []
        held: dict[str, object] = {}
        size = 0

        def write() -> None:
            nonlocal held, size
            path = self._folder / f"weights-{label}-{len(paths)}.safetensors"
            if peers.is_first():
                save_file(held, str(path.with_suffix(".part")))  # type: ignore[arg-type]
                open_to_readers(path.with_suffix(".part"))  # the servers may be another user's
                path.with_suffix(".part").replace(path)
            paths.append(str(path))
            held, size = {}, 0

        for name, weight in named_weights(policy):
            held[name] = weight.contiguous().cpu()
            size += weight.numel() * weight.element_size()
            if size >= FILE_BYTES:
                write()
        if held:
            write()
        return Payload(label, {"paths": paths})

    async def send(self, servers: Sequence[Server], payload: Payload, seconds: float) -> None:
        """Have every server read the files within so many seconds."""
        await each(
            servers, lambda server: server.client.control("/update_weights", seconds, {"update_info": payload.update})
        )

    async def drop(self, servers: Sequence[Server], payload: Payload) -> None:  # noqa: ARG002 - they hold a copy
        """Remove the files from the shared folder; the servers hold a copy."""
        if peers.is_first():
            for path in payload.update["paths"]:
                with contextlib.suppress(OSError):
                    Path(path).unlink()


def shared_folder(section: Vllm) -> Path:
    """Return the folder that trainer and servers share, made if need be.

    Raises:
        InputError: It cannot be made.
    """
    folder = Path(section.shared or ".").expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"generator.shared: {folder} cannot be made ({error.strerror})") from None
    return folder
