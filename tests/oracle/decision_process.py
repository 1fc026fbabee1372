"""A decision process of four states, small enough that every group of episodes can be written down.

The policy decides how many turns an episode has, turns pay something on the way, and two episodes at the same turn are
often in different states: what makes credit by turn hard.  Probabilities and the true gradient are exact sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

START, GOOD, BAD, LAST = range(4)
LOOK, ANSWER = range(2)
PAYS: dict[tuple[int, int], tuple[float, float, dict[int, float]]] = {
    # (state, action): what the turn pays, what the end adds, next states with their probabilities (none: the end)
    (START, LOOK): (0.3, 0.0, {GOOD: 0.5, BAD: 0.5}),
    (START, ANSWER): (0.0, 0.5, {}),
    (GOOD, LOOK): (0.1, 0.0, {LAST: 1.0}),
    (GOOD, ANSWER): (0.0, 1.0, {}),
    (BAD, LOOK): (0.1, 0.0, {LAST: 1.0}),
    (BAD, ANSWER): (0.0, 0.0, {}),
    (LAST, LOOK): (0.0, 0.8, {}),
    (LAST, ANSWER): (0.0, 0.2, {}),
}
LOGITS: Floats = np.array([[0.4, -0.3], [-0.5, 0.6], [0.2, 0.1], [0.3, -0.2]])
"""Logits of the two actions in each state: the policy whose gradient is asked for."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One way through the process: its probability, (state, action) of each turn, and what was paid when."""

    probability: float
    steps: tuple[tuple[int, int], ...]
    paid: tuple[float, ...]
    outcome: float

    @property
    def total(self) -> float:
        """The whole reward."""
        return sum(self.paid) + self.outcome

    def slopes(self, turn: int) -> Floats:
        """Gradient of the log-probability of a turn's action with regard to the logits, shape (4, 2)."""
        state, action = self.steps[turn]
        slopes = np.zeros_like(LOGITS)
        slopes[state] = -policy()[state]
        slopes[state, action] += 1.0
        return slopes


def policy() -> Floats:
    """Return the probability of each action in each state, shape (4, 2)."""
    weights = np.exp(LOGITS)
    return weights / weights.sum(axis=1, keepdims=True)


def episodes(state: int = START) -> Iterator[Episode]:
    """Yield every way from a state to the end."""
    for action in (LOOK, ANSWER):
        paid, outcome, following = PAYS[state, action]
        chance = float(policy()[state, action])
        if not following:
            yield Episode(chance, ((state, action),), (paid,), outcome)
        for after, probability in following.items():
            for rest in episodes(after):
                yield Episode(
                    chance * probability * rest.probability,
                    ((state, action), *rest.steps),
                    (paid, *rest.paid),
                    rest.outcome,
                )


def true_gradient() -> Floats:
    """Gradient of the expected total, by the product rule over all episodes; no advantage and no baseline."""
    return sum(
        (e.probability * e.total * e.slopes(n) for e in episodes() for n in range(len(e.steps))), np.zeros_like(LOGITS)
    )


@dataclass(frozen=True, slots=True)
class Groups:
    """Every group of k episodes, with its probability and the arrays that an estimator reads."""

    members: tuple[tuple[Episode, ...], ...]
    probabilities_g: Floats
    rewards_gk: Floats
    turn_rewards_gkn: Floats
    turns_gkn: Floats
    states_gkn: Floats


def groups(k: int) -> Groups:
    """Return every ordered group of k episodes."""
    members = tuple(product(tuple(episodes()), repeat=k))
    shape = (len(members), k, max(len(e.steps) for e in episodes()))
    paid, turns, states = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for g, group in enumerate(members):
        for i, episode in enumerate(group):
            n = len(episode.steps)
            paid[g, i, :n], turns[g, i, :n] = episode.paid, 1.0
            states[g, i, :n] = [state for state, _ in episode.steps]
    probabilities = np.array([np.prod([e.probability for e in group]) for group in members])
    totals = np.array([[e.total for e in group] for group in members])
    return Groups(members, probabilities, totals, paid, turns, states)


def gradients(every: Groups, turns_gkn: Floats, *, mean_of_turns: bool = False) -> Floats:
    """Return the gradient that each group would give with these advantages, shape (groups, 4, 2)."""
    rows = np.zeros((len(every.members), *LOGITS.shape))
    for g, group in enumerate(every.members):
        for i, episode in enumerate(group):
            share = len(group) * (len(episode.steps) if mean_of_turns else 1)
            rows[g] += sum(turns_gkn[g, i, n] * episode.slopes(n) for n in range(len(episode.steps))) / share
    return rows
