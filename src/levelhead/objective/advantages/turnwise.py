"""Estimators that give each turn of an episode an advantage of its own.

Axes: g groups, k and l rollouts of a group, n and m turns.  What the turns' rewards leave of an episode's total is
earned by its last turn; an episode that was cut off earns nothing after its last turn.  ``G_n`` is the return from turn
n on, ``r_n + discount * G_(n+1)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from array_api_compat import device
from pydantic import Field

from levelhead.objective.advantages.base import Advantages, Array, check_like, check_rewards, divide, standardise
from levelhead.objective.advantages.estimator import Estimator, RewardBatch, Standardised

_ARRAYS = frozenset({"turn_rewards_gkn", "turns_gkn", "states_gkn"})


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of a batch, checked.

    Attributes:
        xp: The arrays' namespace.
        totals_gk: Reward of each episode.
        paid_gkn: What the environment paid for each turn.
        outcomes_gk: What that leaves of each episode's total.
        earned_gkn: What each turn earned, the outcome at the last.
        present_gkn: 1 for the turns that an episode has.
        states_gkn: Equal where the policy read the same.
    """

    xp: ModuleType
    totals_gk: Array
    paid_gkn: Array
    outcomes_gk: Array
    earned_gkn: Array
    present_gkn: Array
    states_gkn: Array

    @classmethod
    def of(cls, batch: RewardBatch) -> Turns:
        """Check the arrays of a batch; raises ``ValueError`` where they do not fit each other."""
        xp, totals_gk = check_rewards(batch.rewards_gk)
        names = ("turn_rewards_gkn", "turns_gkn", "states_gkn")
        arrays = [check_like(name, getattr(batch, name), totals_gk, axes=3) for name in names]
        paid_gkn, present_gkn, states_gkn = arrays
        if len({tuple(array.shape) for array in arrays}) > 1:
            raise ValueError(f"{', '.join(names)} have shapes {', '.join(str(tuple(a.shape)) for a in arrays)}")
        late = present_gkn[:, :, 1:] > present_gkn[:, :, :-1]
        if not bool(xp.all((present_gkn == 0) | (present_gkn == 1))) or bool(xp.any(late)):
            raise ValueError("turns_gkn must hold 1 for the turns of a rollout and 0 after its last")
        if not bool(xp.all(present_gkn[:, :, 0] == 1)):
            raise ValueError("turns_gkn leaves a rollout without any turn")
        if bool(xp.any(paid_gkn * (1 - present_gkn) != 0)):
            raise ValueError("turn_rewards_gkn pays a turn that turns_gkn does not have")
        outcomes_gk = totals_gk - xp.sum(paid_gkn, axis=2)
        rounding_gk = 8 * xp.finfo(totals_gk.dtype).eps * xp.sum(xp.abs(paid_gkn), axis=2)
        outcomes_gk = xp.where(xp.abs(outcomes_gk) > rounding_gk, outcomes_gk, xp.zeros_like(outcomes_gk))
        last_gkn = present_gkn - _next(xp, present_gkn)
        earned_gkn = paid_gkn + outcomes_gk[:, :, None] * last_gkn
        return cls(xp, totals_gk, paid_gkn, outcomes_gk, earned_gkn, present_gkn, states_gkn)

    def advantages(self, turns_gkn: Array) -> Advantages:
        """Return advantages of turns, 0 after the last; a group in which all are 0 is not live."""
        xp, turns_gkn = self.xp, self.xp.where(self.present_gkn > 0, turns_gkn, self.xp.zeros_like(turns_gkn))
        values_gk = xp.sum(turns_gkn, axis=2) / xp.sum(self.present_gkn, axis=2)
        return Advantages(values_gk, xp.any(turns_gkn != 0, axis=(1, 2)), turns_gkn=turns_gkn)


class ReturnToGo(Estimator):
    """``G_n`` less the mean return of other rollouts of the group at a comparable turn.

    The baseline is made of other rollouts alone, so that it does not depend on the turn's own action and the gradient
    stays unbiased (Williams 1992; Kool et al. 2019) however many turns an episode has.  Where no other rollout has a
    comparable turn, all others are compared at the same turn, those that have ended with 0.
    """

    name = "return_to_go"
    needs = _ARRAYS
    by_token = True
    reads_total = False
    discount: float = Field(1.0, gt=0, le=1)
    """What a reward one turn later is worth now."""
    baseline: Literal["state", "turn", "episode"] = "state"
    """Comparable turns of other rollouts: those at which the policy read the same tokens, those of the same number, or
    the same number with 0 after the end."""

    def estimate(self, batch: RewardBatch) -> Advantages:
        """Return the advantage of each turn; exactly 0 where all comparable returns are equal."""
        turns = Turns.of(batch)
        return turns.advantages(self._above(turns))

    def _above(self, turns: Turns) -> Array:
        """Return ``G - baseline`` as the mean of differences, so that equal returns give exactly 0; 0 after the end."""
        xp, present_gkn, states_gkn = turns.xp, turns.present_gkn, turns.states_gkn
        returns_gkn = _to_go(xp, turns.earned_gkn, self.discount)
        k, n = returns_gkn.shape[1:]
        like: dict[str, Any] = {"dtype": returns_gkn.dtype, "device": device(returns_gkn)}
        others = (1.0 - xp.eye(k, **like))[:, None, :, None] * xp.ones_like(present_gkn)[:, None, None]
        same_turn = xp.eye(n, **like)[:, None, :]
        weights = others * same_turn
        if self.baseline != "episode":
            alike = states_gkn[:, :, :, None, None] == states_gkn[:, None, None]
            comparable = same_turn if self.baseline == "turn" else xp.astype(alike, returns_gkn.dtype)
            peers = others * present_gkn[:, None, None] * comparable
            weights = xp.where(xp.sum(peers, axis=(3, 4), keepdims=True) > 0, peers, weights)
        differences = returns_gkn[:, :, :, None, None] - returns_gkn[:, None, None]
        return xp.sum(weights * differences, axis=(3, 4)) / xp.sum(weights, axis=(3, 4)) * present_gkn


class LooGae(ReturnToGo):
    """Generalised advantages (Schulman et al. 2016, arXiv:1506.02438) whose values are returns of other rollouts.

    ``V_n`` is the baseline of :class:`ReturnToGo`, leave-one-out, and 0 after the end; ``delta_n = r_n + discount *
    V_(n+1) - V_n`` and ``A_n = sum over m of (discount * trace)^m delta_(n+m)``.  ``trace`` of 1 is
    :class:`ReturnToGo`; below 1 the advantage leans on values of later turns, with less variance, and with bias where
    comparable turns are not in the same state.
    """

    name = "loo_gae"
    trace: float = Field(0.95, ge=0, le=1)
    """How much of later surprises a turn is credited with, the paper's lambda."""

    def estimate(self, batch: RewardBatch) -> Advantages:
        """Return the advantage of each turn."""
        turns = Turns.of(batch)
        above_gkn = self._above(turns)
        # With V = G - above, delta is above_n - discount * above_(n+1): exactly 0 where nothing differs.
        surprises_gkn = above_gkn - self.discount * _next(turns.xp, above_gkn)
        return turns.advantages(_to_go(turns.xp, surprises_gkn, self.discount * self.trace))


class MtGrpo(Standardised):
    """GRPO by turn: ``A_n = A^outcome + turn_weight * sum over m >= n of discount^(m-n) A^turn_m``.

    Zeng et al. 2025, arXiv:2505.11821.  ``A^turn_m`` is the reward of turn m, standardised over the rollouts that have
    such a turn; ``A^outcome`` is what the turns' rewards leave of the total, standardised over the group.  With two
    turns and a reward for the first this is the paper's.  Where the policy decides how many turns an episode has, the
    sum has as many baselines as the episode has turns, and the gradient is biased towards fewer turns where turns
    earn something (verl #7244): :class:`ReturnToGo` is not.
    """

    name = "mt_grpo"
    needs = _ARRAYS
    divides_by_std = True
    by_token = True
    reads_total = False
    biased_by_length = True
    discount: float = Field(1.0, gt=0, le=1)
    """What a turn's advantage one turn later is worth now."""
    turn_weight: float = Field(1.0, ge=0, le=1e3)
    """Weight of the turns' rewards beside the outcome."""

    def estimate(self, batch: RewardBatch) -> Advantages:
        """Return the advantage of each turn."""
        turns = Turns.of(batch)
        xp, paid_gkn, present_gkn = turns.xp, turns.paid_gkn, turns.present_gkn
        columns = [
            _standardise_members(xp, paid_gkn[:, :, n], present_gkn[:, :, n], self.ddof, self.eps)
            for n in range(paid_gkn.shape[2])
        ]
        by_turn_gkn = _to_go(xp, xp.stack(columns, axis=2), self.discount)
        outcome_gk, _ = standardise(xp, turns.outcomes_gk, ddof=self.ddof, eps=self.eps)
        return turns.advantages(outcome_gk[:, :, None] + self.turn_weight * by_turn_gkn)


class GiGpo(Standardised):
    """GRPO of whole episodes, and GRPO of returns among turns in the same state (Feng et al. 2025, arXiv:2505.10978).

    ``A_n = A^episode + step_weight * A^step_n``: the total standardised over the group, and ``G_n`` standardised over
    all turns of the group at which the policy read the same tokens (the paper's anchor states).  A turn whose state
    nobody else was in has the first alone.
    """

    name = "gigpo"
    needs = _ARRAYS
    divides_by_std = True
    by_token = True
    reads_total = False
    discount: float = Field(0.95, gt=0, le=1)
    """What a reward one turn later is worth now, the paper's gamma."""
    step_weight: float = Field(1.0, ge=0, le=1e3)
    """Weight of the comparison within states, the paper's omega."""

    def estimate(self, batch: RewardBatch) -> Advantages:
        """Return the advantage of each turn."""
        turns = Turns.of(batch)
        xp, shape = turns.xp, turns.present_gkn.shape
        episode_gk, _ = standardise(xp, turns.totals_gk, ddof=self.ddof, eps=self.eps)
        returns_gkn = _to_go(xp, turns.earned_gkn, self.discount)
        returns_gs, present_gs, states_gs = (
            xp.reshape(array, (shape[0], -1)) for array in (returns_gkn, turns.present_gkn, turns.states_gkn)
        )
        steps = []
        for s in range(returns_gs.shape[1]):
            members_gs = xp.where(states_gs == states_gs[:, s : s + 1], present_gs, xp.zeros_like(present_gs))
            steps.append(_standardise_members(xp, returns_gs, members_gs, self.ddof, self.eps)[:, s])
        step_gkn = xp.reshape(xp.stack(steps, axis=1), shape)
        return turns.advantages(episode_gk[:, :, None] + self.step_weight * step_gkn)


def _next(xp: ModuleType, values_gkn: Array) -> Array:
    """Return the value of the following turn, 0 after the last."""
    return xp.concat([values_gkn[:, :, 1:], xp.zeros_like(values_gkn[:, :, :1])], axis=2)


def _to_go(xp: ModuleType, values_gkn: Array, discount: float) -> Array:
    """Return the discounted sum of each turn's value and those after it."""
    total_gk, columns = xp.zeros_like(values_gkn[:, :, 0]), []
    for n in reversed(range(values_gkn.shape[2])):
        total_gk = values_gkn[:, :, n] + discount * total_gk
        columns.append(total_gk)
    return xp.stack(columns[::-1], axis=2)


def _standardise_members(xp: ModuleType, values_gk: Array, members_gk: Array, ddof: int, eps: float) -> Array:
    """Return ``(value - mean) / (std + eps)`` over the members of each row; 0 elsewhere, and where all are equal."""
    member = members_gk > 0
    count_g1 = xp.clip(xp.sum(members_gk, axis=1, keepdims=True), 1, None)
    low_g1 = xp.min(xp.where(member, values_gk, xp.max(values_gk, axis=1, keepdims=True)), axis=1, keepdims=True)
    above_gk = xp.where(member, values_gk - low_g1, xp.zeros_like(values_gk))
    centred_gk = xp.where(member, above_gk - xp.sum(above_gk, axis=1, keepdims=True) / count_g1, above_gk)
    variance_g1 = xp.sum(centred_gk**2, axis=1, keepdims=True) / xp.clip(count_g1 - ddof, 1, None)
    return divide(xp, centred_gk, xp.sqrt(variance_g1), eps)
