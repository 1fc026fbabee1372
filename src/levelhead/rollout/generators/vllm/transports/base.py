"""What a way to bring weights to servers does; when it does what is decided in one place, for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from levelhead.policy.policy import Policy
from levelhead.rollout.generators.vllm.servers import Server


@dataclass(frozen=True, slots=True)
class Payload:
    """One version of the weights, on its way.

    Attributes:
        label: By which servers call the version.
        update: What they are told of it.
    """

    label: str
    update: dict[str, Any]


class Transport(Protocol):
    """Brings the policy's weights, or its adapter, to servers: packs them once, and sends them to each."""

    in_place: ClassVar[bool]
    """Whether the server's weights are replaced: it is paused for it, and forgets what it has cached."""

    def prepare(self, policy: Policy, label: str) -> Payload:
        """Gather a version of the weights; every process of the run calls it, in a thread that may compute."""
        ...

    async def send(self, servers: Sequence[Server], payload: Payload, seconds: float) -> None:
        """Bring the weights to some servers, within ``seconds`` each."""
        ...

    async def holds(self, server: Server, label: str) -> bool:
        """Whether a server still has a version, or has been started anew since."""
        ...

    def model(self, label: str) -> str:
        """Name of the model that requests for a version ask for."""
        ...

    async def drop(self, servers: Sequence[Server], payload: Payload) -> None:
        """Let go of a version that nobody asks for any more."""
        ...
