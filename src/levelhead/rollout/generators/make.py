"""The one place that constructs generators."""

from __future__ import annotations

from concurrent.futures import Executor

from levelhead.policy.policy import Policy
from levelhead.recipe.generator import Local, Vllm
from levelhead.rollout.generators.base import Generator
from levelhead.rollout.generators.local import LocalGenerator


def make_generator(
    policy: Policy,
    executor: Executor | None = None,
    section: Local | Vllm | None = None,
    beside: Generator | None = None,
) -> Generator:
    """Return the generator that draws a policy's completions.

    Args:
        policy: Whose completions.
        executor: Where it computes; in a thread of its own unless given, beside whoever waits.
        section: The recipe's ``generator``; the policy itself samples unless given.
        beside: A generator of the same run, whose servers this one shares; it then closes them.

    Raises:
        InputError: Servers, or what it takes to reach them, cannot be had.
    """
    if beside is None and not isinstance(section, Vllm):
        return LocalGenerator(policy, executor=executor)
    from levelhead.rollout.generators.vllm.generator import VllmGenerator, make_engine

    if isinstance(beside, VllmGenerator):
        return VllmGenerator(policy, beside.engine, executor, shares=True)
    if isinstance(section, Vllm):
        return VllmGenerator(policy, make_engine(section, policy), executor)
    return LocalGenerator(policy, executor=executor)
