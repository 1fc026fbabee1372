"""The one place that chooses how a policy's model is run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from levelhead.errors import InputError
from levelhead.policy.backends.base import Backend, PolicyLike
from levelhead.policy.backends.sdpa import Sdpa

if TYPE_CHECKING:
    from levelhead.policy.backends.cpu.backend import Cpu
    from levelhead.policy.backends.flex.backend import Flex

_log = logging.getLogger(__name__)


def backends() -> tuple[type[Cpu] | type[Flex] | type[Sdpa], ...]:
    """Return every backend there is; the last one, the reference, runs any model."""
    from levelhead.policy.backends.cpu.backend import Cpu
    from levelhead.policy.backends.flex.backend import Flex

    return Cpu, Flex, Sdpa


def choose_backend(policy: PolicyLike) -> Backend:
    """Return the fastest backend that supports a policy's model on its device, and log which and why.

    Raises:
        InputError: The policy asks for a backend by name that does not support its model.
    """
    named = {kind.name: kind for kind in backends()}
    fast = named["cpu" if policy.device.type == "cpu" else "flex"]
    asked = policy.runs_on
    why: list[str] = []
    for kind in (fast, Sdpa) if asked == "auto" else (named[asked],):
        reason = kind.supports(policy)
        if reason is None:
            _log.info("%s runs on backend %s%s", type(policy.base).__name__, kind.name, "".join(f" ({w})" for w in why))
            return kind()
        if asked != "auto":
            raise InputError(f"model.backend: {asked} cannot run {type(policy.base).__name__}: {reason}; use auto")
        why.append(f"not {kind.name}: {reason}")
    raise AssertionError("the reference backend supports every model")


def expected_backend(policy: PolicyLike, device: str) -> str:
    """Name the backend that a policy's model will run on, told from its architecture alone, without weights.

    :func:`choose_backend` also compares results on the model at hand, and falls back where they differ.

    Args:
        policy: Whose model may have no weights.
        device: Type of the device that it will run on, as ``cpu`` or ``cuda``.
    """
    if policy.runs_on != "auto":
        return policy.runs_on
    listens = bool(getattr(policy.base, "_supports_attention_backend", False))
    return ("cpu" if device == "cpu" else "flex") if policy.shares_prefixes and listens else Sdpa.name
