"""What the textbook reads and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from levelhead.recipe.objective import KlController, Shaping
from levelhead.recipe.training import Grpo

Floats = NDArray[np.float64]


class UnprovedError(Exception):
    """The recipe asks for something that no page of the textbook describes."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What a recipe says of one task.

    Attributes:
        weight: Of its objective, relative to the other tasks'.
        kl: Its own KL coefficient; ``None`` takes ``grpo.kl.coef``.
        controller: Its own KL controller; ``None`` takes ``grpo.kl.controller``.
        shaping: Of its rewards.
        balance: Whether its strata count alike.
        most: The most reward that it declares.
    """

    weight: float = 1.0
    kl: float | None = None
    controller: KlController | None = None
    shaping: Shaping = field(default_factory=Shaping)
    balance: bool = False
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """A recipe, as far as the arithmetic goes.

    Attributes:
        grpo: The ``grpo`` section.
        tasks: By name.
    """

    grpo: Grpo
    tasks: Mapping[str, TaskSettings]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One rollout.

    Attributes:
        reward: Its total reward.
        parts: Its named rewards.
        features: Structural features of what it wrote.
        lengths: Completion tokens of each turn.
        entropies: (tokens,) of the policy before the first update, turn after turn.
        drift: (tokens,) log-ratio of the policy to the reference before the first update.
        paid: What was paid for each turn; nothing where the episode is paid once.
        states: What the policy read at each turn.
    """

    reward: float
    parts: Mapping[str, float]
    features: Mapping[str, float]
    lengths: tuple[int, ...]
    entropies: Floats
    drift: Floats
    paid: tuple[float, ...] = ()
    states: tuple[object, ...] = ()

    @property
    def length(self) -> int:
        """Completion tokens over all turns."""
        return sum(self.lengths)


@dataclass(frozen=True, slots=True)
class Problem:
    """A group: the attempts at one prompt.

    Attributes:
        task: Name of its task.
        stratum: What its task tells it apart by.
        attempts: Its K rollouts.
    """

    task: str
    stratum: str
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion in an update, token by token: a row of the loss.

    Attributes:
        task: Name of its task.
        problem: Number of its group.
        attempt: Number of its rollout in the group.
        turn: Number of its turn in the rollout.
        turns: Turns of its rollout.
        truncated: Whether its rollout ran out of its budget.
        micro: Number of its micro-batch; -1 where it was not computed.
        width: Tokens of the longest answer in that.
        advantage: (t,) advantage of each token.
        balance: What its group weighs among the strata.
        learns: (t,) 1 for the tokens of high entropy that are learnt from, else 0.
        new: (t,) log-probabilities under the policy.
        old: (t,) under the policy that the updates of the batch begin with.
        behaviour: (t,) under the distribution that the tokens were sampled from.
        reference: (t,) under the reference.
    """

    task: str
    problem: int
    attempt: int
    turn: int
    turns: int
    truncated: bool
    micro: int
    width: int
    advantage: Floats
    balance: float
    learns: Floats
    new: Floats
    old: Floats
    behaviour: Floats
    reference: Floats

    @property
    def length(self) -> int:
        """Its tokens."""
        return len(self.new)


@dataclass(frozen=True, slots=True)
class Slopes:
    """Derivatives of the loss, which is minimised, for one answer.

    Attributes:
        policy: (t,) of the surrogate along the log-probabilities.
        kl: (t,) of the KL term along the log-probabilities.
        entropy: (t,) of the entropy bonus along the entropies.
        side: (t,) -1 where the ratio is clipped from below, 1 from above, 0 where it is not.
        optional: (t,) whether the token may be one of those that a loss by covariance treats otherwise, at random.
        other: (t,) slope of the surrogate of such a token.
        special: How many of the optional tokens of its micro-batch are treated otherwise.
    """

    policy: Floats
    kl: Floats
    entropy: Floats
    side: Floats
    optional: NDArray[np.bool_]
    other: Floats
    special: int = 0

    @property
    def total(self) -> Floats:
        """(t,) of the loss along the log-probabilities."""
        return self.policy + self.kl
