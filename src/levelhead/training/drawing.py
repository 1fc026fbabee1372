"""The one place that decides how rollouts get to the steps: batch by batch, or from a queue of groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import Sampling
from levelhead.recipe.training import Grpo
from levelhead.training.batches import Batches
from levelhead.training.collect import Collector
from levelhead.training.group_queue import GroupQueue
from levelhead.training.ranks import Ranks
from levelhead.training.stream import Stream


def make_batches(
    stream: Stream,
    collector: Collector,
    config: Grpo,
    seed: int,
    *,
    policy: Policy,
    controls: Callable[[int], Sampling],
    synced: Callable[[Policy, Policy], None],
    ranks: Ranks,
    keeps: bool = False,
) -> Batches | GroupQueue:
    """Return what hands out the rollouts of each step; arguments as of :class:`GroupQueue`.

    Batch by batch where none is drawn ahead, or one by a single process; else from a queue of groups.
    """
    whole: dict[str, Any] = {"policy": policy, "controls": controls, "synced": synced, "keeps": keeps}
    if config.ahead > 1 or (config.ahead and not ranks.alone):
        return GroupQueue(stream, collector, config, seed, ranks=ranks, **whole)
    return Batches(stream, collector, config, seed, **whole)
