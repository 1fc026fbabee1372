"""What every advantage estimator is: its settings, what it needs, and its formula, in one class."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from pydantic import Field

from levelhead.objective.advantages.base import Advantages, Array
from levelhead.section import Section


@dataclass(frozen=True, slots=True)
class RewardBatch:
    """What an estimator reads: the rewards of groups of one size, and what else it has asked for.

    Attributes:
        rewards_gk: Rewards, shape (groups, K), K >= 2.
        lengths_gk: Completion tokens, shape (groups, K).
        parts: Named rewards, each of shape (groups, K).
        applies: Which rollouts a part applies to, boolean, shape (groups, K); all where none is named.
        features: A number for each rollout by name of a structural feature, each of shape (groups, K).
        entropies_gkt: Entropy of the policy at each token in nats, shape (groups, K, tokens).
        mask_gkt: 1 for completion tokens, 0 for padding, shape (groups, K, tokens).
        turn_rewards_gkn: What the environment paid for each turn, as parts of the total, shape (groups, K, turns).
        turns_gkn: 1 for the turns that a rollout has, 0 after its last, shape (groups, K, turns).
        states_gkn: A number for what the policy read at each turn: equal where it read the same, shape
            (groups, K, turns).
    """

    rewards_gk: Array
    lengths_gk: Array | None = None
    parts: Mapping[str, Array] | None = None
    applies: Mapping[str, Array] | None = None
    features: Mapping[str, Array] | None = None
    entropies_gkt: Array | None = None
    mask_gkt: Array | None = None
    turn_rewards_gkn: Array | None = None
    turns_gkn: Array | None = None
    states_gkn: Array | None = None


class Estimator(Section):
    """An advantage estimator: its fields are its settings, :meth:`estimate` is its formula.

    A subclass is a whole estimator; the docstring of a field is the documentation of its key
    ``grpo.advantage.<field>``.  Formulas are written against the array API, for numpy arrays and torch tensors alike.
    """

    name: ClassVar[str] = ""
    """Its ``grpo.advantage.kind``; a class of your own needs none."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """Fields of :class:`RewardBatch`, besides the rewards, that it cannot do without."""
    takes: ClassVar[frozenset[str]] = frozenset()
    """Fields that it can make use of."""
    divides_by_std: ClassVar[bool] = False
    """Whether it divides by the deviation of a group, so that any difference of rewards counts as a large one."""
    aims_at_mean: ClassVar[bool] = True
    """Whether it raises the mean reward, as a trial of its sign expects, and nothing besides."""
    by_token: ClassVar[bool] = False
    """Whether it gives each token an advantage of its own, and not each rollout one."""
    biased_by_length: ClassVar[bool] = False
    """Whether its gradient leans towards fewer (or more) turns where the policy decides how many there are."""
    reads_total: ClassVar[bool] = True
    """Whether it reads the total reward, which shaping and a charge for the KL change."""

    @property
    def min_group_size(self) -> int:
        """Rollouts that a group must have to be compared."""
        return 2

    @property
    def arrays(self) -> frozenset[str]:
        """Fields of :class:`RewardBatch` that it is to be given under these settings."""
        return self.needs

    def features(self) -> list[str]:
        """Return the names of the features that it reads, where it needs ``features``."""
        return []

    def for_parts(self, names: Collection[str]) -> Self:  # noqa: ARG002
        """Return the estimator for a batch that has rewards of these names alone."""
        return self

    def estimate(self, batch: RewardBatch) -> Advantages:
        """Return the advantages of a batch; exactly 0 in a group that carries no signal.

        Raises:
            ValueError: A shape does not fit, or an entry is not finite.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method estimate(self, batch)")


class Standardised(Estimator):
    """An estimator that divides by a standard deviation."""

    ddof: int = Field(1, ge=0, le=1)
    """Degrees of freedom of the standard deviation: 1 sample (TRL), 0 population."""
    eps: float = Field(1e-4, ge=0, le=1e3)
    """Added to the standard deviation."""
