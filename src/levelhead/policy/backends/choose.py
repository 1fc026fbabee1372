"""The one place that chooses how a policy's model is run."""

from __future__ import annotations

import logging

from levelhead.errors import InputError
from levelhead.policy.backends.base import Backend, PolicyLike
from levelhead.policy.backends.sdpa import Sdpa

_log = logging.getLogger(__name__)


def choose_backend(policy: PolicyLike) -> Backend:
    """Return the fastest backend that supports a policy's model on its device, and log which and why.

    Raises:
        InputError: The policy asks for a backend by name that does not support its model.
    """
    from levelhead.policy.backends.cpu.backend import Cpu
    from levelhead.policy.backends.flex.backend import Flex

    fast = Cpu if policy.device.type == "cpu" else Flex
    named = {kind.name: kind for kind in (Cpu, Flex, Sdpa)}
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
