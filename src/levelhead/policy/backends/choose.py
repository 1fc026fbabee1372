"""The one place that chooses how a policy's model is run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from levelhead.policy.backends.base import Backend, PolicyLike
from levelhead.policy.backends.sdpa import Sdpa

if TYPE_CHECKING:
    from levelhead.policy.backends.cpu.backend import Cpu

_log = logging.getLogger(__name__)


def backends() -> tuple[type[Cpu] | type[Sdpa], ...]:
    """Return every backend there is, the fastest first; the last one, the reference, runs any model."""
    from levelhead.policy.backends.cpu.backend import Cpu

    return Cpu, Sdpa


def choose_backend(policy: PolicyLike) -> Backend:
    """Return the fastest backend that supports a policy's model on its device, and log which and why."""
    why: list[str] = []
    for kind in backends():
        reason = kind.supports(policy)
        if reason is None:
            _log.info("%s runs on backend %s%s", type(policy.base).__name__, kind.name, "".join(f" ({w})" for w in why))
            return kind()
        why.append(f"not {kind.name}: {reason}")
    raise AssertionError("the reference backend supports every model")


def expected_backend(policy: PolicyLike, device: str) -> str:
    """Name the backend that a policy's model will run on, told from its architecture alone, without weights.

    :func:`choose_backend` also compares results on the model at hand, and falls back where they differ.

    Args:
        policy: Whose model may have no weights.
        device: Type of the device that it will run on, as ``cpu`` or ``cuda``.
    """
    wanted = "cpu" if device == "cpu" else "flex"
    there = {kind.name for kind in backends()}
    listens = bool(getattr(policy.base, "_supports_attention_backend", False))
    return wanted if wanted in there and policy.shares_prefixes and listens else Sdpa.name
