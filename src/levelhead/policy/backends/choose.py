"""The one place that chooses how a policy's model is run."""

from __future__ import annotations

import logging

from levelhead.policy.backends.base import Backend, PolicyLike
from levelhead.policy.backends.sdpa import Sdpa

_log = logging.getLogger(__name__)


def choose_backend(policy: PolicyLike) -> Backend:
    """Return the fastest backend that supports a policy's model on its device, and log which and why."""
    from levelhead.policy.backends.cpu.backend import Cpu

    why: list[str] = []
    for kind in (Cpu, Sdpa):
        reason = kind.supports(policy)
        if reason is None:
            _log.info("%s runs on backend %s%s", type(policy.base).__name__, kind.name, "".join(f" ({w})" for w in why))
            return kind()
        why.append(f"not {kind.name}: {reason}")
    raise AssertionError("the reference backend supports every model")
