"""The one place that constructs generators."""

from __future__ import annotations

from levelhead.policy.policy import Policy
from levelhead.rollout.generators.local import LocalGenerator


def make_generator(policy: Policy) -> LocalGenerator:
    """Return the generator that draws a policy's completions."""
    return LocalGenerator(policy)
