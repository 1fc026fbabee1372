"""Puts the servers of a recipe together."""

from __future__ import annotations

from levelhead.policy.policy import Policy
from levelhead.recipe.generator import Vllm
from levelhead.rollout.generators.vllm.client import Client
from levelhead.rollout.generators.vllm.engine import Engine
from levelhead.rollout.generators.vllm.servers import Server, Servers
from levelhead.rollout.generators.vllm.transports.adapter import AdapterTransport
from levelhead.rollout.generators.vllm.transports.base import Transport
from levelhead.rollout.generators.vllm.transports.files import FilesTransport
from levelhead.rollout.generators.vllm.transports.nccl import NcclTransport

_TRANSPORTS: dict[str, type[AdapterTransport] | type[FilesTransport] | type[NcclTransport]] = {
    "adapter": AdapterTransport,
    "files": FilesTransport,
    "nccl": NcclTransport,
}


def make_engine(section: Vllm, policy: Policy) -> Engine:
    """Return the servers of a recipe, none of which has been asked for anything.

    Raises:
        InputError: The key of the servers, the shared folder or vLLM's sender cannot be had.
    """
    transport: Transport = _TRANSPORTS[section.sync](section)
    servers = Servers([Server(Client(url, section)) for url in section.urls])
    return Engine(section, servers, transport, policy)
