"""Prompts by how much there is to learn from them, and groups sampled again where nothing can be learnt.

A group of rewards 0 and 1 has no gradient where all of it failed or all of it succeeded.  With success probability p
the variance of its rewards, and with it the expected gradient, is in proportion to p(1 - p): prompts are sampled in
that proportion (learnability: Rutherford et al. 2024; Foster and Foerster 2025 for language models).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from levelhead import metrics as metric
from levelhead.errors import InputError
from levelhead.recipe.training import Grpo, Learnability
from levelhead.records import Group, Prompt
from levelhead.rollout.draws import derive, generator
from levelhead.tasks.base import Task
from levelhead.training.answers import success
from levelhead.training.stream import OTHER_STREAM, PromptStream, Stream

Floats = NDArray[np.float64]
PRIOR = 1.0
"""Successes, and as many failures, that every stratum is taken to have had."""
ITEM_PRIOR = 1.0
"""Attempts, at its stratum's success, that every item is taken to have had."""


def make_stream(tasks: Sequence[Task], weights: Sequence[float], seed: int, curriculum: object = None) -> Stream:
    """Return the stream that a recipe's ``grpo.curriculum`` asks for; without one, tasks go by weight."""
    if isinstance(curriculum, Learnability):
        return LearnabilityStream(tasks, weights, seed, curriculum)
    return PromptStream(tasks, weights, seed)


@dataclass(slots=True)
class Evidence:
    """Outcomes of some arms (strata or items), each fading by age.

    Attributes:
        wins: Successes, shape (n,).
        tries: Attempts, shape (n,).
        seen: Step of the last outcome, shape (n,).
    """

    wins: Floats
    tries: Floats
    seen: Floats

    @classmethod
    def none(cls, n: int) -> Evidence:
        """Return n arms that have never been tried."""
        return cls(np.zeros(n), np.zeros(n), np.zeros(n))

    def at(self, step: int, half_life: float) -> tuple[Floats, Floats]:
        """Return wins and tries as they count at a step, shape (n,) each."""
        decay = 0.5 ** ((step - self.seen) / half_life)
        return self.wins * decay, self.tries * decay

    def add(self, index: int, wins: float, tries: float, step: int, half_life: float) -> None:
        """Let one arm's old outcomes fade to a step and add new ones."""
        decay = 0.5 ** ((step - self.seen[index]) / half_life)
        self.wins[index] = self.wins[index] * decay + wins
        self.tries[index] = self.tries[index] * decay + tries
        self.seen[index] = step

    def row(self, index: int) -> list[float]:
        """Return one arm as JSON."""
        return [float(self.wins[index]), float(self.tries[index]), float(self.seen[index])]

    def load(self, index: int, row: Sequence[float]) -> None:
        """Restore one arm from :meth:`row`: successes, tries and the step of the newest."""
        self.wins[index], self.tries[index], self.seen[index] = row


class LearnabilityStream:
    """Draws strata, and items within them, in proportion to p(1 - p) of their recent success.

    A stratum's weight is its share by the recipe's weights times max(4 p(1 - p), floor); an item's within its stratum
    is max(4 p(1 - p), floor).  An untried stratum has p = 1/2, an untried item its stratum's p.  Outcomes lose half of
    their weight every ``half_life`` steps, so that what is not sampled becomes untried again.

    Args:
        tasks: What to draw from; one of several kinds of problem is taken apart.
        weights: One positive weight a task.
        seed: Of the draws.
        config: Floor and half-life.
    """

    def __init__(self, tasks: Sequence[Task], weights: Sequence[float], seed: int, config: Learnability) -> None:
        self._config, self._seed = config, seed
        self._stratum_of = {task.name: task.kind_of if task.shares else None for task in tasks}
        self._items: dict[str, list[Prompt]] = {}
        shares: dict[str, float] = {}
        for task, weight in zip(tasks, weights, strict=True):
            items = self._sorted(task, derive(seed, "order", task.name))
            if not items:
                raise InputError(f"task {task.name!r} has no training prompts; check its path and limit")
            for name, members in items.items():
                self._items[name] = members
                shares[name] = weight * task.shares.get(name.partition("/")[2], 1.0)
        self._names = list(self._items)
        self._base = np.array([shares[name] for name in self._names])
        self._where = {
            (prompt.task, prompt.id): (arm, index)
            for arm, name in enumerate(self._names)
            for index, prompt in enumerate(self._items[name])
        }
        self._strata = Evidence.none(len(self._names))
        self._each = [Evidence.none(len(self._items[name])) for name in self._names]
        self._draws = self._step = 0

    def take(self, n: int) -> list[Prompt]:
        """Return n prompts: strata by their weights, within one prompt, and none twice while others are left."""
        rng = generator(self._seed, "curriculum", self._draws)
        self._draws += 1
        shares = self._shares()
        counts = np.bincount(_systematic(shares, n, float(rng.random())), minlength=len(shares))
        return [prompt for arm in np.flatnonzero(counts) for prompt in self._choose(int(arm), int(counts[arm]), rng)]

    def peek(self, n: int) -> list[Prompt]:
        """Return what :meth:`take` would, and stay where it is."""
        draws = self._draws
        try:
            return self.take(n)
        finally:
            self._draws = draws

    def learn(self, groups: Sequence[Group], step: int) -> None:
        """Take note of outcomes; a rollout succeeds by its ``success`` part, else by a reward of at least 0.5."""
        self._step, half_life = step, self._config.half_life
        for group in groups:
            arm, index = self._where[group.prompt.task, group.prompt.id]
            wins, tries = float(sum(map(success, group.rollouts))), float(len(group.rollouts))
            self._strata.add(arm, wins, tries, step, half_life)
            self._each[arm].add(index, wins, tries, step, half_life)

    def metrics(self) -> dict[str, float]:
        """Return each stratum's estimated success and its share of the next draws."""
        success, shares = self._success(), self._shares()
        values: dict[str, float] = {}
        for arm, name in enumerate(self._names):
            values[metric.CURRICULUM_SUCCESS.of(name)] = float(success[arm])
            values[metric.CURRICULUM_SHARE.of(name)] = float(shares[arm])
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return counts and what has been seen, as JSON."""
        items = {
            name: {self._items[name][i].id: stream.row(i) for i in map(int, np.flatnonzero(stream.tries))}
            for name, stream in zip(self._names, self._each, strict=True)
        }
        strata = {name: self._strata.row(arm) for arm, name in enumerate(self._names)}
        return {"draws": self._draws, "step": self._step, "strata": strata, "items": items}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned.

        Raises:
            InputError: The state is that of other tasks, or of another kind of stream.
        """
        if set(state.get("strata", ())) != set(self._names):
            raise InputError(OTHER_STREAM)
        self._draws, self._step = int(state["draws"]), int(state["step"])
        self._each = [Evidence.none(len(self._items[name])) for name in self._names]
        for arm, name in enumerate(self._names):
            self._strata.load(arm, state["strata"][name])
            ids = {prompt.id: index for index, prompt in enumerate(self._items[name])}
            if not set(state["items"][name]) <= set(ids):
                raise InputError(OTHER_STREAM)
            for item, row in state["items"][name].items():
                self._each[arm].load(ids[item], row)

    def _sorted(self, task: Task, seed: int) -> dict[str, list[Prompt]]:
        """A task's prompts by stratum."""
        by_task: dict[str, list[Prompt]] = {}
        stratum = self._stratum_of[task.name]
        for prompt in task.prompts("train", seed):
            kind = stratum(prompt) if stratum is not None else ""
            by_task.setdefault(f"{task.name}/{kind}" if kind else task.name, []).append(prompt)
        return by_task

    def _success(self) -> Floats:
        """Recent success of each stratum, shape (strata,)."""
        wins, tries = self._strata.at(self._step, self._config.half_life)
        return np.asarray((wins + PRIOR) / (tries + 2 * PRIOR))

    def _shares(self) -> Floats:
        """Share of each stratum in the next draws, shape (strata,); sums to 1."""
        weights = self._base * self._weigh(self._success())
        return np.asarray(weights / weights.sum())

    def _weigh(self, success: Floats) -> Floats:
        return np.maximum(4 * success * (1 - success), self._config.floor)

    def _choose(self, arm: int, count: int, rng: np.random.Generator) -> Iterator[Prompt]:
        """Draw items of a stratum by weight, without replacement until all have been sampled."""
        items = self._items[self._names[arm]]
        wins, tries = self._each[arm].at(self._step, self._config.half_life)
        success = (wins + ITEM_PRIOR * self._success()[arm]) / (tries + ITEM_PRIOR)
        while count > 0:
            # The smallest of exponential variables scaled by 1 / weight: a weighted draw without replacement.
            keys = rng.exponential(size=len(items)) / self._weigh(success)
            selected = np.argsort(keys, kind="stable")[:count]
            yield from (items[i] for i in selected)
            count -= len(selected)


def has_contrast(group: Group, config: Grpo) -> bool:
    """Whether the rollouts of a group have different rewards, as the task gave them.

    For an estimator that credits turns, rewards that add up to the same total differ where those of the turns do.
    """
    if len(set(group.rewards)) > 1:
        return True
    paid = {rollout.turn_rewards for rollout in group.rollouts}
    return len(paid) > 1 and "turn_rewards_gkn" in config.advantage.make().arrays


def _systematic(shares: Floats, n: int, start: float) -> NDArray[np.int64]:
    """Draw n indices by their shares, each within one of n times its share; shares sum to 1, ``start`` in [0, 1)."""
    edges = np.cumsum(shares)
    places = (start + np.arange(n)) / n * edges[-1]
    return np.asarray(np.minimum(np.searchsorted(edges, places, side="right"), len(shares) - 1))
