"""The one place that constructs generators."""

from __future__ import annotations

from concurrent.futures import Executor

from levelhead.policy.policy import Policy
from levelhead.rollout.generators.local import LocalGenerator


def make_generator(policy: Policy, executor: Executor | None = None) -> LocalGenerator:
    """Return the generator that draws a policy's completions.

    Args:
        policy: Whose completions.
        executor: Where it computes; in a thread of its own unless given, beside whoever waits.
    """
    return LocalGenerator(policy, executor=executor)
