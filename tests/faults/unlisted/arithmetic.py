"""From rewards to advantages: baselines, deviations, shaping, several rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import levelhead.objective.advantages
import levelhead.training.advantages
import levelhead.training.batch
import levelhead.training.batch_report
import levelhead.training.group_queue
from faults.unlisted.registry import GITHUB, NEMO, OPENRLHF, PRIME, TRL, VERL, swapped, unlisted
from levelhead.objective.advantages import Advantages
from levelhead.objective.shaping import RewardShaping
from levelhead.records import Group

TWO = ("grpo.advantage.kind=gdpo",)


def _computed(change: Callable[..., Advantages]) -> Iterator[None]:
    """Put ``change(real, name, rewards_gk, **options)`` in the place of every estimator."""

    def make(real: Any) -> Any:
        return lambda name, rewards_gk, **options: change(real, name, rewards_gk, **options)

    with swapped(levelhead.objective.advantages, "compute", make):
        yield


@unlisted(
    "groups-interleaved",
    "prompts are repeated as 1, 2, 1, 2 where the window of a group expects 1, 1, 2, 2: baselines mix prompts",
    PRIME + "pull/600",
    GITHUB + "StarsfieldAI/R1-V/issues/67",
    kind="advantages",
    named_by=["advantage group", "advantage baseline", "advantage prompt", "advantage exchanged", "advantage mean"],
)
def _groups_interleaved() -> Iterator[None]:
    def change(real: Any, name: str, rewards_gk: Any, **options: Any) -> Advantages:
        g, k = rewards_gk.shape
        values = real(name, np.asarray(rewards_gk).T.reshape(g, k), **options).values_gk
        values_gk = np.asarray(values).reshape(k, g).T
        return Advantages(values_gk, (values_gk != 0).any(axis=1))

    yield from _computed(change)


@unlisted(
    "deviation-leaves-one-out",
    "each advantage is divided by the deviation of the others alone, in float32: next to nothing where they are alike",
    NEMO + "pull/4158",
    NEMO + "issues/1518",
    kind="advantages",
    named_by=["advantage deviation", "advantage std", "advantage normalis", "advantage times", "advantage scale"],
)
def _deviation_leaves_one_out() -> Iterator[None]:
    def change(real: Any, name: str, rewards_gk: Any, **options: Any) -> Advantages:
        advantages = real(name, rewards_gk, **options)
        r = np.asarray(rewards_gk, dtype=np.float32)
        n = np.float32(r.shape[1] - 1)
        mean = (r.sum(1, keepdims=True) - r) / n
        square = ((r * r).sum(1, keepdims=True) - r * r) / n
        std = np.sqrt(np.maximum((square - mean * mean) * n / (n - 1), 0))
        values = np.where(std > 0, (r - mean) / (std + np.float32(1e-6)), r - mean).astype(np.float64)
        return replace(advantages, values_gk=np.where(advantages.has_signal_g[:, None], values, 0.0))

    yield from _computed(change)


@unlisted(
    "rewards-never-whitened",
    "REINFORCE++ without its normalisation: the rewards are the advantages, and all of them pull one way",
    OPENRLHF + "issues/924",
    kind="advantages",
    named_by=[
        "advantage mean",
        "advantage whiten",
        "advantage baseline",
        "advantage deviation",
        "advantage normalis",
        "advantage centred",
        "advantage offset",
    ],
    settings=["grpo.advantage.kind=reinforce_pp"],
)
def _rewards_never_whitened() -> Iterator[None]:
    def change(real: Any, name: str, rewards_gk: Any, **options: Any) -> Advantages:
        real(name, rewards_gk, **options)
        rewards_gk = np.asarray(rewards_gk)
        return Advantages(rewards_gk, (rewards_gk != 0).any(axis=1))

    yield from _computed(change)


@unlisted(
    "odd-one-out-is-filtered",
    "the filter asks each rollout for the deviation of the others: a group's only success is left out of it",
    NEMO + "pull/3469",
    kind="sampling",
    named_by=[
        "rollouts dropped",
        "rollouts missing",
        "rollouts left out",
        "group size",
        "group fewer",
        "group contrast",
    ],
    settings=["sft.steps=55"],
    reward="exact",
)
def _odd_one_out_is_filtered() -> Iterator[None]:
    from levelhead.training.collect import Collector

    def thinned(group: Group) -> Group:
        rewards = group.rewards
        odd = [
            i
            for i, r in enumerate(rewards)
            if len({*rewards[:i], *rewards[i + 1 :]}) == 1 and r not in {*rewards[:i], *rewards[i + 1 :]}
        ]
        if len(rewards) < 3 or len(odd) != 1:
            return group
        return replace(group, rollouts=tuple(r for i, r in enumerate(group.rollouts) if i != odd[0]))

    def make(real: Any) -> Any:
        async def answers(self: Collector, *args: Any) -> list[Group]:
            return [thinned(group) for group in await real(self, *args)]

        return answers

    with swapped(Collector, "_answers", make):
        yield


@unlisted(
    "length-in-characters",
    "the length penalty counts the characters of a completion where its bounds are tokens",
    GITHUB + "huggingface/open-r1/pull/567",
    TRL + "pull/3804",
    kind="shaping",
    named_by=["length penalty", "shaping", "overlong", "advantage length", "shaped"],
    settings=["tasks.0.shaping.length={kind: overlong, cache: 8, max_length: 24}"],
)
def _length_in_characters() -> Iterator[None]:
    def lengths(groups: Any) -> Any:
        return np.array([[max(1.0, float(sum(map(len, r.text)))) for r in group.rollouts] for group in groups])

    with swapped(levelhead.training.advantages, "_lengths", lambda _: lengths):
        yield


@unlisted(
    "overlong-penalty-skipped",
    "rewards are computed on another path, which the overlong penalty of the recipe is not on",
    VERL + "issues/4268",
    kind="shaping",
    named_by=["length penalty", "shaping", "shaped", "overlong", "advantage length", "penalty"],
    settings=["tasks.0.shaping.length={kind: overlong, cache: 12}"],
)
def _overlong_penalty_skipped() -> Iterator[None]:
    def make(real: Any) -> Any:
        def call(self: RewardShaping, batch: Any, state: Any) -> Any:
            return real(replace(self, length=None), batch, state)

        return call

    with swapped(RewardShaping, "__call__", make):
        yield


@unlisted(
    "filter-sees-shaped-rewards",
    "dynamic sampling keeps groups whose answers differ in length alone: what is filtered is the shaped reward",
    NEMO + "issues/2431",
    kind="shaping",
    named_by=["dynamic sampling", "redraw", "contrast", "zero-std", "filter"],
    settings=["sft.steps=50", "grpo.dynamic_sampling=3", "tasks.0.shaping.length={kind: per_token, coef: 0.2}"],
    reward="exact",
)
def _filter_sees_shaped_rewards() -> Iterator[None]:
    def make(real: Any) -> Any:
        return lambda group, config: real(group, config) or len({rollout.length for rollout in group.rollouts}) > 1

    with (
        swapped(levelhead.training.group_queue, "has_contrast", make),
        swapped(levelhead.training.batch_report, "has_contrast", make),
    ):
        yield


@unlisted(
    "k3-charged-to-the-reward",
    "the KL that is charged to the reward is k3, whose place is the loss: never negative, and biased there",
    TRL + "pull/7096",
    kind="reference",
    named_by=["kl reward", "kl charge", "k1", "k3", "advantage kl"],
    settings=["grpo.kl={where: reward, estimator: k1, coef: 0.2}"],
)
def _k3_charged_to_the_reward() -> Iterator[None]:
    def charge(scores: Any, coef: float, gaps: list[float]) -> Any:
        sums = []
        for group in scores:
            row = []
            for turns in group:
                pairs = [(a, b) for turn in turns for a, b in zip(turn.logprobs, turn.reference or (), strict=True)]
                drift = torch.tensor([a - b for a, b in pairs], dtype=torch.float64)
                gaps.extend(drift.tolist())
                row.append(float((torch.exp(-drift) - 1 + drift).sum()))
            sums.append(row)
        return -coef * np.array(sums)

    with swapped(levelhead.training.advantages, "_charge", lambda _: charge):
        yield


@unlisted(
    "entropy-threshold-over-padding",
    "the entropy that a token must reach is a quantile over padding as well, so that more tokens reach it",
    TRL + "issues/3709",
    TRL + "pull/3715",
    kind="masks",
    named_by=[
        "top_entropy",
        "entropy threshold",
        "tokens entropy highest",
        "entropy mask",
        "mask tokens",
        "tokens weigh|",
    ],
    settings=["grpo.loss.top_entropy=0.2"],
)
def _entropy_threshold_over_padding() -> Iterator[None]:
    def make(real: Any) -> Any:
        def threshold(scores: Any, fraction: float) -> Any:
            rows = [[h for turn in turns for h in turn.entropies] for group in scores for turns in group]
            longest = max(map(len, rows))
            flat = torch.tensor([h for row in rows for h in [*row, *[0.0] * (longest - len(row))]])
            real(scores, fraction)
            return float(flat.quantile(1 - fraction))

        return threshold

    with swapped(levelhead.training.batch, "_threshold", make):
        yield


@unlisted(
    "gdpo-sees-the-sum-alone",
    "an environment hands over the sum of its rewards: the estimator that keeps them apart sees one",
    NEMO + "issues/2892",
    kind="tasks",
    named_by=["gdpo", "advantage parts", "named reward", "advantage reward", "reward apart"],
    settings=TWO,
    reward="two",
)
def _gdpo_sees_the_sum_alone() -> Iterator[None]:
    def change(real: Any, name: str, rewards_gk: Any, **options: Any) -> Advantages:
        if "parts" not in options:
            return real(name, rewards_gk, **options)  # type: ignore[no-any-return]
        alone = {k: v for k, v in options.items() if k not in ("parts", "applies", "weights")}
        return real(name, rewards_gk, parts={"total": rewards_gk}, **alone)  # type: ignore[no-any-return]

    yield from _computed(change)


@unlisted(
    "weights-by-alphabet",
    "rewards are put in alphabetical order, their weights are not: each weight is another reward's",
    NEMO + "pull/2680",
    kind="tasks",
    named_by=["gdpo", "advantage weight", "reward weight", "advantage reward"],
    settings=[*TWO, "grpo.advantage.weights={closeness: 1.0, brevity: 0.1}"],
    reward="two",
)
def _weights_by_alphabet() -> Iterator[None]:
    def change(real: Any, name: str, rewards_gk: Any, **options: Any) -> Advantages:
        weights = options.get("weights", getattr(name, "weights", None))
        if weights:
            options["weights"] = dict(zip(sorted(weights), weights.values(), strict=True))
        return real(name, rewards_gk, **options)  # type: ignore[no-any-return]

    yield from _computed(change)
