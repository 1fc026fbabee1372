"""From rewards to advantages, task by task: shaping, the charge for leaving the reference, the estimator, balance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from levelhead import metrics as metric
from levelhead.errors import InputError
from levelhead.objective import advantages
from levelhead.objective.advantages import Advantages, Estimator, RewardBatch
from levelhead.objective.shaping import RewardShaping
from levelhead.objective.terms import as_reward
from levelhead.recipe.objective import Shaping
from levelhead.recipe.task import TaskSection
from levelhead.recipe.training import Grpo
from levelhead.records import Group, Prompt, Rollout
from levelhead.tasks.base import SingleTurnTask, Task
from levelhead.tasks.grader import GRADE
from levelhead.training.recompute import Recomputed

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """What a group's rollouts are worth.

    Attributes:
        values: Advantage of each rollout.
        has_signal: Whether the group teaches anything.
        shaped: Reward of each rollout after shaping.
        tokens: Advantage of each token of each rollout, turns one after another; ``None`` where all are alike.
        weight: Factor of the group's policy gradient; 1 unless its task is balanced.
    """

    values: list[float]
    has_signal: bool
    shaped: list[float]
    tokens: list[list[float]] | None = None
    weight: float = 1.0


@dataclass(slots=True)
class AdvantageEstimator:
    """Turns scored groups into advantages, and keeps the statistics that shaping runs on.

    Attributes:
        config: The ``grpo`` section.
        shapers: What is done to the rewards of each task.
        shaping: State of each task's shaping, by its steps.
        balanced: Tasks whose strata count alike, by name.
        declared: Names of rewards that a batch may lack, as of a judge that sees right answers alone.
    """

    config: Grpo
    shapers: Mapping[str, RewardShaping]
    shaping: dict[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    balanced: Mapping[str, Task] = field(default_factory=dict)
    declared: frozenset[str] = frozenset()

    def assign(
        self, groups: Sequence[Group], recomputed: Recomputed | None, kl_coefs: Mapping[str, float]
    ) -> tuple[list[GroupAdvantages], dict[str, float]]:
        """Return the advantages of every group, and what was measured on the way.

        Groups of one task and size are taken together.  A group that lost all but one of its rollouts has nothing to
        be compared with and teaches nothing.

        Args:
            groups: Scored.
            recomputed: Of their tokens, where :func:`levelhead.training.recompute.needs_recompute`.
            kl_coefs: Coefficient of each task, for ``kl.where: reward``.

        Raises:
            InputError: The estimator needs what a task does not report.
        """
        buckets: dict[tuple[str, int], list[int]] = {}
        for index, group in enumerate(groups):
            buckets.setdefault((group.prompt.task, len(group.rollouts)), []).append(index)
        self._check_weights(groups)
        by_group: dict[int, GroupAdvantages] = {}
        drift: dict[str, list[float]] = {}
        for (task, size), members in buckets.items():
            bucket = [groups[i] for i in members]
            if size < 2:
                by_group |= {i: GroupAdvantages([0.0] * size, False, list(groups[i].rewards)) for i in members}
                continue
            bucket_recomputed = None if recomputed is None else [recomputed[i] for i in members]
            rewards_gk = self.shape(task, bucket)
            charged_gk = rewards_gk
            if self.config.kl.where == "reward" and bucket_recomputed is not None and _is_referred(bucket_recomputed):
                charged_gk = rewards_gk + _charge(bucket_recomputed, kl_coefs[task], drift.setdefault(task, []))
            group_advantages = self._estimate(task, bucket, bucket_recomputed, rewards_gk, charged_gk)
            by_group.update(zip(members, group_advantages, strict=True))
        means = {metric.KL_BY_TASK.of(task): math.fsum(gaps) / len(gaps) for task, gaps in drift.items() if gaps}
        values = means | ({metric.KL: math.fsum(means.values()) / len(means)} if means else {})
        for name, balanced in self.balanced.items():
            values |= _balance(name, balanced, groups, by_group)
        return [by_group[i] for i in range(len(groups))], values

    def state_dict(self) -> dict[str, Any]:
        """What shaping carries on from batch to batch, as JSON."""
        return dict(self.shaping)

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore :meth:`state_dict`; moments that stand there by themselves are those of the z-score."""
        self.shaping = {task: {"zscore": own} if "weight" in own else own for task, own in state.items()}

    def shape(self, task: str, groups: Sequence[Group]) -> Floats:
        """Return the shaped rewards of groups of one size, shape (groups, K); running statistics take them in."""
        rewards_gk = np.array([group.rewards for group in groups], dtype=np.float64)
        if task not in self.shapers:
            return rewards_gk
        shaper = self.shapers[task]
        arrays: dict[str, Any] = {"lengths_gk": _lengths(groups)}
        if "parts" in shaper.needs:
            arrays["parts"] = _columns("tasks[].shaping", task, groups, _named(groups), attrgetter("parts"), gaps=True)
        shaped_gk, state = shaper(RewardBatch(rewards_gk, **arrays), self.shaping.get(task))
        self.shaping |= {task: state} if state else {}
        return np.asarray(shaped_gk)

    def _estimate(
        self, task: str, groups: Sequence[Group], recomputed: Recomputed | None, shaped_gk: Floats, rewards_gk: Floats
    ) -> list[GroupAdvantages]:
        estimator = self.config.advantage.make()
        if len(groups[0].rollouts) < estimator.min_group_size:
            return [GroupAdvantages([0.0] * len(row), False, row.tolist()) for row in shaped_gk]
        if "parts" in estimator.arrays:
            estimator = estimator.for_parts({name for g in groups for r in g.rollouts for name in r.parts})
        arrays = self._arrays(estimator, task, groups, recomputed)
        result = advantages.compute(estimator, rewards_gk, clip=self.config.advantage.clip, **arrays)
        return [
            GroupAdvantages(
                result.values_gk[g].tolist(),
                bool(result.has_signal_g[g]),
                shaped_gk[g].tolist(),
                _by_token(result, g, group),
            )
            for g, group in enumerate(groups)
        ]

    def _arrays(
        self, estimator: Estimator, task: str, groups: Sequence[Group], recomputed: Recomputed | None
    ) -> dict[str, Any]:
        """The arrays that the estimator takes besides the rewards."""
        asker, needed = f"grpo.advantage.kind: {self.config.advantage.kind}", estimator.arrays
        extras: dict[str, Any] = {}
        if "lengths_gk" in needed:
            extras["lengths_gk"] = _lengths(groups)
        if "parts" in needed:
            names = _named(groups)
            extras["parts"] = _columns(asker, task, groups, names, attrgetter("parts"), gaps=True)
        if "parts" in needed and "applies" in estimator.takes:
            extras["applies"] = {
                name: np.array([[name in r.parts for r in group.rollouts] for group in groups], dtype=np.float64)
                for name in names
                if any(name not in r.parts for group in groups for r in group.rollouts)
            }
        if "features" in needed:
            extras["features"] = _columns(asker, task, groups, estimator.features(), _features)
        if "entropies_gkt" in needed and recomputed is not None:
            extras["entropies_gkt"], extras["mask_gkt"] = _entropies(recomputed)
        if "turns_gkn" in needed:
            extras |= _turns(groups)
        return extras

    def _check_weights(self, groups: Sequence[Group]) -> None:
        """A weight for a reward that no task names, or has in a batch, is a slip of the pen."""
        weighted: Mapping[str, float] = getattr(self.config.advantage, "weights", None) or {}
        names = {name for g in groups for r in g.rollouts for name in r.parts}
        complete = {group.prompt.task for group in groups} >= self.shapers.keys()
        if names and complete and (unknown := sorted(weighted.keys() - names - self.declared)):
            there = ", ".join(sorted(names | self.declared))
            raise InputError(f"grpo.advantage.weights: no task has a reward called {unknown[0]!r}; there are {there}")


def _balance(
    name: str, task: Task, groups: Sequence[Group], group_advantages: dict[int, GroupAdvantages]
) -> dict[str, float]:
    """Give each group of a task its stratum's weight (:func:`group_weights`); return them as metrics."""
    members = [i for i, group in enumerate(groups) if group.prompt.task == name and group.rollouts]
    strata = [stratum_of(task, groups[i].prompt) for i in members]
    weights = group_weights(strata)
    for i, weight in zip(members, weights, strict=True):
        group_advantages[i] = replace(group_advantages[i], weight=weight)
    return {metric.BALANCE.of(name, stratum): weight for stratum, weight in zip(strata, weights, strict=True)}


def declared_rewards(tasks: Collection[Task]) -> frozenset[str]:
    """Return the names of rewards that tasks may give, known before any answer has been scored."""
    parts = [task.part_weights or {} for task in tasks]
    judged = {GRADE} if any(isinstance(task, SingleTurnTask) and task.grader for task in tasks) else set()
    return frozenset(judged.union(*parts))


def make_shapers(sections: Mapping[str, Shaping], config: Grpo) -> dict[str, RewardShaping]:
    """The shaping of each task; classes of the user's own are loaded.

    Args:
        sections: Of each task, in the recipe's order.
        config: The ``grpo`` section.

    Raises:
        InputError: Settings that do not fit each other, the completion budget or the estimator.
    """
    shapers: dict[str, RewardShaping] = {}
    for index, (task, section) in enumerate(sections.items()):
        if section != Shaping() and not config.advantage.make().reads_total:
            raise InputError(
                f"tasks: {task}: shaping changes the total reward, which grpo.advantage.kind: {config.advantage.kind} "
                "does not look at; remove one of them"
            )
        try:
            shapers[task] = section.make(config.sampling.max_new_tokens, f"tasks.{index}.shaping")
        except ValueError as error:
            raise InputError(f"tasks: {task}: shaping: {error}") from None
    return shapers


def _lengths(groups: Sequence[Group]) -> Floats:
    return np.array([[float(rollout.length) for rollout in group.rollouts] for group in groups])


def _named(groups: Sequence[Group]) -> list[str]:
    """Names of the rewards of groups, in the order in which they come."""
    return list(dict.fromkeys(name for group in groups for rollout in group.rollouts for name in rollout.parts))


def _features(rollout: Rollout) -> Mapping[str, float]:
    """Structural features of an answer: what the task calls so, else its parts."""
    score = rollout.score
    features = score.info.get("features") if score else None
    return features if isinstance(features, Mapping) else rollout.parts


def _columns(
    asker: str, task: str, groups: Sequence[Group], names: Sequence[str], of: Any, *, gaps: bool = False
) -> dict[str, Floats]:
    """One array a name, shape (groups, K); with ``gaps``, 0 where an answer has no such number.

    ``asker`` is the key of the recipe that wants them.
    """
    rows = [[of(rollout) for rollout in group.rollouts] for group in groups]
    if not names:
        raise InputError(f"{asker}: task {task!r} names no rewards; choose another")
    for name in names:
        lacking = next((row for group in rows for row in group if name not in row), None)
        if lacking is not None and not gaps:
            raise InputError(
                f"{asker}: task {task!r} reports no {name!r} with every answer "
                f"(one has {', '.join(lacking) or 'nothing'}); choose others, or another estimator"
            )
    return {name: np.array([[float(row.get(name, 0.0)) for row in group] for group in rows]) for name in names}


def _by_token(result: Advantages, g: int, group: Group) -> list[list[float]] | None:
    """Advantage of each token of each rollout of group ``g``; ``None`` where a rollout's are all alike."""
    if result.tokens_gkt is not None:
        return [result.tokens_gkt[g, k, : rollout.length].tolist() for k, rollout in enumerate(group.rollouts)]
    if result.turns_gkn is not None:
        return [
            [float(result.turns_gkn[g, k, n]) for n, turn in enumerate(rollout.turns) for _ in turn.completion_ids]
            for k, rollout in enumerate(group.rollouts)
        ]
    return None


def _turns(groups: Sequence[Group]) -> dict[str, Floats]:
    """Rewards, presence and states of all turns; a state is what the policy read, token for token."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    shape = (len(groups), len(groups[0].rollouts), max(len(rollout.turns) for rollout in rollouts))
    rewards_gkn, turns_gkn, states_gkn = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    numbers: dict[tuple[int, ...], int] = {}
    for index, rollout in enumerate(rollouts):
        where, count = divmod(index, shape[1]), len(rollout.turns)
        rewards_gkn[where][: len(rollout.turn_rewards)] = rollout.turn_rewards
        turns_gkn[where][:count] = 1.0
        states_gkn[where][:count] = [numbers.setdefault(turn.context_ids, len(numbers)) for turn in rollout.turns]
    return {"turn_rewards_gkn": rewards_gkn, "turns_gkn": turns_gkn, "states_gkn": states_gkn}


def _entropies(recomputed: Recomputed) -> tuple[Floats, Floats]:
    """Entropies and mask of all turns of each rollout, one after another, shape (groups, K, tokens)."""
    flat = [[[h for turn in turns for h in turn.entropies] for turns in group] for group in recomputed]
    longest = max(len(row) for group in flat for row in group)
    entropies = np.array([[[max(h, 0.0) for h in row] + [0.0] * (longest - len(row)) for row in g] for g in flat])
    mask = np.array([[[1.0] * len(row) + [0.0] * (longest - len(row)) for row in group] for group in flat])
    return entropies, mask


def _is_referred(recomputed: Recomputed) -> bool:
    """Whether a reference has scored the tokens: none is kept where no task has, or can come to have, a KL."""
    return all(turn.reference is not None for group in recomputed for turns in group for turn in turns)


def _charge(recomputed: Recomputed, coef: float, gaps: list[float]) -> Floats:
    """What k1 adds to each reward, shape (groups, K): the log-ratio to the reference over all tokens of a rollout."""
    sums = []
    for group in recomputed:
        row = []
        for turns in group:
            drift = [a - b for turn in turns for a, b in zip(turn.logprobs, turn.reference or (), strict=True)]
            gaps.extend(drift)
            row.append(math.fsum(drift))
        sums.append(row)
    kl_gk = torch.tensor(sums, dtype=torch.float64)
    return np.asarray((coef * as_reward(kl_gk, "minimize")).numpy())


def stratum_of(task: Task, prompt: Prompt) -> str:
    """Return the stratum of a prompt: its value of the first key that the task names; ``none`` where it names none."""
    return next(iter(task.strata(prompt).values()), "none")


def group_weights(strata: Sequence[str]) -> list[float]:
    """Return the weight of each group of a batch from the stratum of each: positive, with a mean of 1.

    With ``N`` groups of a task in a batch, ``S`` different strata among them and ``n_s`` groups of stratum ``s``, a
    group of stratum ``s`` weighs ``w_s = N / (S n_s)``, so that every stratum weighs ``N / S`` in all.  A stratum that
    a batch does not hold weighs nothing in it, and the others share alike.  Groups without contrast count among the
    ``n_s``: they add nothing, and those beside them weigh no more for it, so that the expected gradient is that of the
    mean over strata of the expected reward.

    >>> group_weights(["yes", "yes", "yes", "no"])
    [0.6666666666666666, 0.6666666666666666, 0.6666666666666666, 2.0]
    """
    counts = Counter(strata)
    return [len(strata) / (len(counts) * counts[stratum]) for stratum in strata]


def balanced_tasks(sections: Sequence[TaskSection], tasks: Mapping[str, Task]) -> dict[str, Task]:
    """Return the tasks by name whose sections ask for balance; ``tasks`` come in the sections' order.

    Raises:
        InputError: Such a task names no strata.
    """
    balanced: dict[str, Task] = {}
    for index, (section, (name, task)) in enumerate(zip(sections, tasks.items(), strict=True)):
        if not section.balance:
            continue
        prompt = next(iter(task.prompts("train", 0)), None)
        if prompt is not None and not task.strata(prompt):
            raise InputError(f"tasks.{index}.balance: task {name!r} names no strata to balance; remove the key")
        balanced[name] = task
    return balanced
