"""Episodes of several turns: which of their tokens are learnt from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import levelhead.training.batch
from faults.unlisted.registry import GITHUB, NEMO, SWIFT, swapped, unlisted
from levelhead.objective.advantages import Advantages
from levelhead.policy.packing import TokenSequence
from levelhead.records import Group
from levelhead.training.advantages import AdvantageEstimator
from levelhead.training.batch import Sample


def _sampled(change: Callable[[Group, list[Sample]], list[Sample]]) -> Iterator[None]:
    """Change the samples of every group."""

    def make(real: Any) -> Any:
        def samples(prefix_group: int, group: Group, *args: Any) -> list[Sample]:
            return change(group, real(prefix_group, group, *args))

        return samples

    with swapped(levelhead.training.batch, "_samples", make):
        yield


@unlisted(
    "last-turn-alone-learns",
    "the loss falls on the answer of the last turn: what led to it is not learnt from",
    SWIFT + "pull/7838",
    kind="turns",
    named_by=["turn"],
    probe="episodes",
)
def _last_turn_alone_learns() -> Iterator[None]:
    def change(group: Group, samples: list[Sample]) -> list[Sample]:
        ends, at = [], -1
        for rollout in group.rollouts:
            at += len(rollout.turns)
            ends.append(at)
        return [samples[i] for i in ends]

    yield from _sampled(change)


@unlisted(
    "history-is-trained-on",
    "whatever has the role of the assistant is trained on, also what stands in the prompt of a later turn",
    NEMO + "pull/2176",
    kind="turns",
    named_by=["turn", "history", "falls prompt", "trained prompt"],
    probe="episodes",
)
def _history_is_trained_on() -> Iterator[None]:
    def change(group: Group, samples: list[Sample]) -> list[Sample]:
        turns = [turn for rollout in group.rollouts for turn in rollout.turns]
        first = [rollout.turns[0] for rollout in group.rollouts for _ in rollout.turns]
        return [_longer(*each) for each in zip(samples, turns, first, strict=True)]

    yield from _sampled(change)


def _longer(sample: Sample, turn: Any, first: Any) -> Sample:
    """Move what an earlier turn has said, and all behind it, from the context into the completion."""
    start = len(first.context_ids)
    if turn is first or turn.context_ids[:start] != first.context_ids:
        return sample
    more = turn.context_ids[start:]
    zeros = (0.0,) * len(more)
    return replace(
        sample,
        sequence=TokenSequence(first.context_ids, (*more, *turn.completion_ids), sample.sequence.prefix_group),
        logprobs=zeros + sample.logprobs,
        behaviour=zeros + sample.behaviour,
    )


@unlisted(
    "long-episodes-count-more",
    "a group's baseline counts an episode once a turn: those with more turns move it further",
    GITHUB + "microsoft/agent-lightning/pull/445",
    GITHUB + "microsoft/agent-lightning/issues/489",
    kind="turns",
    named_by=["turn", "advantage baseline", "advantage mean", "advantage group"],
    probe="episodes",
)
def _long_episodes_count_more() -> Iterator[None]:
    import numpy as np

    turns: list[list[list[int]]] = []

    def bucket(real: Any) -> Any:
        def estimate(self: AdvantageEstimator, task: str, groups: Any, *args: Any) -> Any:
            turns.append([[len(r.turns) for r in g.rollouts] for g in groups])
            try:
                return real(self, task, groups, *args)
            finally:
                turns.pop()

        return estimate

    def make(real: Any) -> Any:
        def compute(name: str, rewards_gk: Any, **options: Any) -> Advantages:
            advantages = real(name, rewards_gk, **options)
            if not turns or np.shape(turns[-1]) != np.shape(rewards_gk):
                return advantages
            w = np.array(turns[-1], dtype=np.float64)
            r = np.asarray(rewards_gk)
            mean = (w * r).sum(1, keepdims=True) / w.sum(1, keepdims=True)
            std = np.sqrt((w * (r - mean) ** 2).sum(1, keepdims=True) / (w.sum(1, keepdims=True) - 1))
            values = np.where(advantages.has_signal_g[:, None], (r - mean) / (std + options.get("eps", 1e-4)), 0.0)
            return replace(advantages, values_gk=values)

        return compute

    import levelhead.objective.advantages as estimators

    with swapped(AdvantageEstimator, "_estimate", bucket), swapped(estimators, "compute", make):
        yield
