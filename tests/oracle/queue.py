"""The queue of groups of one process that samples nothing ahead, apart from a trainer."""

from __future__ import annotations

from levelhead.policy.policy import Policy
from levelhead.recipe.training import Grpo
from levelhead.training.collect import Collector
from levelhead.training.group_queue import GroupQueue
from levelhead.training.group_sampler import SamplingSetup
from levelhead.training.ranks import Ranks
from levelhead.training.stream import Stream


def in_step(stream: Stream, collector: Collector, config: Grpo, seed: int, policy: Policy) -> GroupQueue:
    """Return a queue that samples the groups of each step when it begins."""
    config = config.model_copy(update={"ahead": 0})
    return GroupQueue(SamplingSetup(stream, collector, config, seed, policy, lambda _: config.sampling, Ranks()))
