"""What a group size and an estimator do to advantages, on paper: needs numpy, and no torch.

Groups are enumerated with their exact probabilities where the reward takes few values and the estimator looks at one
group at a time; otherwise they are drawn from a seeded generator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from levelhead.lab.outcomes import Outcomes
from levelhead.objective import advantages

Floats = NDArray[np.float64]

BATCH_ESTIMATORS = frozenset({"batch", "reinforce_pp", "reinforce_pp_baseline"})
"""Estimators that look at the whole batch."""
OTHER_LIVE = frozenset({"reinforce_pp", "pass_at_k", "pkpo"})
"""Estimators for which a group can be live without contrast, or dead with it."""
MAX_ENUMERATED = 20_000
"""Different groups that are enumerated before drawing is cheaper."""
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the advantage that are reported."""
ENOUGH = 0.9
"""Share of the best efficiency that a recommended group size must reach."""
DEAD_STEPS = 0.01
"""Share of steps without any live group from which the recommendation warns."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated, apart from the rewards and the group size.

    Attributes:
        estimator: Name of the advantage estimator.
        ddof: Degrees of freedom of its standard deviation.
        eps: Added to its standard deviation.
        clip: Bound on the absolute advantage.
        options: Other keywords of the estimator (``k`` of ``pass_at_k``).
        tokens: Mean completion tokens of a rollout.
        length_cv: Spread of completion lengths relative to their mean; ``opo`` alone looks at lengths.
        budget: Completion tokens generated for one step.
        samples: Rollouts drawn where groups cannot be enumerated.
        seed: Seed of every draw.
    """

    estimator: str = "grpo"
    ddof: int = 1
    eps: float = 1e-4
    clip: float | None = None
    options: dict[str, Any] = field(default_factory=dict)
    tokens: float = 512.0
    length_cv: float = 0.5
    budget: float = 64 * 512.0
    samples: int = 100_000
    seed: int = 0

    def __post_init__(self) -> None:
        if unknown := advantages.inputs(self.estimator) - {"lengths_gk"}:
            raise ValueError(
                f"estimator {self.estimator!r} needs {', '.join(sorted(unknown))}, which a reward alone does not give; "
                f"simulate knows {', '.join(estimators())}"
            )
        for name in ("tokens", "budget", "samples"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and above 0, got {getattr(self, name)!r}")
        if not 0 <= self.length_cv < math.inf:
            raise ValueError(f"length_cv must be finite and 0 or more, got {self.length_cv!r}")


@dataclass(frozen=True, slots=True)
class Row:
    """What is expected at one group size.

    Attributes:
        k: Rollouts in a group.
        all_failed: Probability that all have the lowest reward.
        all_solved: Probability that all have the highest reward.
        dead: Probability that all have the same reward, exactly.
        live: Probability that the estimator finds something to learn in a group.
        groups: Groups that the budget buys for a step, a fraction where it does not buy one.
        live_groups: Of these, how many are live on average.
        dead_step: Probability that no group of a step is live.
        quantiles: Advantage at each of :data:`LEVELS`, over all rollouts.
        largest: Largest absolute advantage that occurs.
        spread: Root mean square of the advantage.
        signal: ``E[A z]`` of a rollout, ``z`` being its reward in standard deviations from the mean reward.
        signal_per_1k_tokens: Signal of a thousand generated tokens.
        efficiency: ``E[A z]^2 / E[A^2]``, between 0 and 1: rollouts with a perfect baseline that one is worth.
        effective_samples: ``k * efficiency``, what a group is worth.
        exact: Whether groups were enumerated.
    """

    k: int
    all_failed: float
    all_solved: float
    dead: float
    live: float
    groups: float
    live_groups: float
    dead_step: float
    quantiles: tuple[float, ...]
    largest: float
    spread: float
    signal: float
    signal_per_1k_tokens: float
    efficiency: float
    effective_samples: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Result:
    """All group sizes under one distribution and one estimator.

    Attributes:
        outcomes: The reward distribution.
        setup: What was simulated.
        rows: One a group size, in ascending order.
        recommended_k: The group size that the budget should use.
        reason: Why, in one line.
    """

    outcomes: Outcomes
    setup: Setup
    rows: tuple[Row, ...]
    recommended_k: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return a dict for a JSON document."""
        rows = [
            {
                **asdict(row),
                "quantiles": {f"{level:g}": value for level, value in zip(LEVELS, row.quantiles, strict=True)},
            }
            for row in self.rows
        ]
        return {
            "outcomes": self.outcomes.to_json(),
            "setup": asdict(self.setup),
            "rows": rows,
            "recommended_k": self.recommended_k,
            "reason": self.reason,
        }


def estimators() -> tuple[str, ...]:
    """Return the estimators that a simulation of rewards alone can run."""
    return tuple(name for name in advantages.names() if not advantages.inputs(name) - {"lengths_gk"})


def simulate(outcomes: Outcomes, ks: Sequence[int], setup: Setup) -> Result:
    """Return what every group size of ``ks`` does under one reward distribution and one estimator.

    Args:
        outcomes: Distribution of a rollout's reward; rollouts are independent.
        ks: Group sizes, each at least 2.
        setup: The estimator and the budget.

    Raises:
        ValueError: No group size, one below 2, or one that the estimator refuses.
    """
    if not ks:
        raise ValueError("simulate needs at least one group size")
    rows = tuple(_row(outcomes, k, setup) for k in sorted(set(ks)))
    recommended_k, reason = _recommend(rows, setup)
    return Result(outcomes, setup, rows, recommended_k, reason)


def _row(outcomes: Outcomes, k: int, setup: Setup) -> Row:
    if k < 2:
        raise ValueError(f"a group needs at least 2 rollouts, got K={k}")
    values_gk, rewards_gk, has_signal_g, weight_g, exact = _groups(outcomes, k, setup)
    weight_gk = np.broadcast_to(weight_g[:, None] / k, values_gk.shape)
    standard_gk = (rewards_gk - outcomes.mean) / outcomes.std if outcomes.std > 0 else np.zeros_like(rewards_gk)
    signal = float(np.sum(weight_gk * values_gk * standard_gk))
    power = float(np.sum(weight_gk * values_gk**2))
    efficiency = signal**2 / power if power > 0 else 0.0
    dead = min(1.0, math.fsum(p**k for p in outcomes.probabilities))
    live = float(np.sum(weight_g * has_signal_g)) if setup.estimator in OTHER_LIVE else 1 - dead
    groups = setup.budget / (setup.tokens * k)
    groups = float(math.floor(groups)) if groups >= 1 else groups
    together = setup.estimator == "reinforce_pp"
    return Row(
        k=k,
        all_failed=outcomes.probabilities[0] ** k,
        all_solved=outcomes.probabilities[-1] ** k if len(outcomes.values) > 1 else 0.0,
        dead=dead,
        live=live,
        groups=groups,
        live_groups=groups * live,
        dead_step=math.fsum(p ** (k * groups) for p in outcomes.probabilities) if together else (1 - live) ** groups,
        quantiles=_quantiles(values_gk, weight_gk),
        largest=float(np.abs(values_gk[weight_g > 0]).max()),
        spread=math.sqrt(power),
        signal=signal,
        signal_per_1k_tokens=1000 * signal / setup.tokens,
        efficiency=efficiency,
        effective_samples=k * efficiency,
        exact=exact,
    )


def _groups(outcomes: Outcomes, k: int, setup: Setup) -> tuple[Floats, Floats, NDArray[np.bool_], Floats, bool]:
    """Return advantages and rewards, shape (groups, K), live groups, probabilities, and whether they are exact."""
    levels = len(outcomes.values)
    takes_lengths = "lengths_gk" in advantages.inputs(setup.estimator) and setup.length_cv > 0
    alone = setup.estimator not in BATCH_ESTIMATORS and not takes_lengths
    if alone and math.comb(k + levels - 1, levels - 1) <= MAX_ENUMERATED:
        rewards_gk, weight_g = _enumerated(outcomes, k)
        estimate = _advantages(rewards_gk, np.full_like(rewards_gk, setup.tokens), setup)
        return estimate.values_gk, rewards_gk, estimate.has_signal_g, weight_g, True
    rng = np.random.default_rng([setup.seed, k])
    in_batch = max(1, int(setup.budget // (setup.tokens * k)))
    drawn = max(1, setup.samples // k)
    batches, per_batch = (
        (1, drawn) if setup.estimator not in BATCH_ESTIMATORS else (max(1, drawn // in_batch), in_batch)
    )
    rewards_bgk = outcomes.draw(rng, (batches, per_batch, k))
    lengths_bgk = _lengths(rng, rewards_bgk.shape, setup)
    estimate_b = [_advantages(*batch, setup) for batch in zip(rewards_bgk, lengths_bgk, strict=True)]
    values_gk = np.concatenate([estimate.values_gk for estimate in estimate_b])
    has_signal_g = np.concatenate([estimate.has_signal_g for estimate in estimate_b])
    return values_gk, rewards_bgk.reshape(-1, k), has_signal_g, np.full(len(has_signal_g), 1 / len(has_signal_g)), False


def _advantages(rewards_gk: Floats, lengths_gk: Floats, setup: Setup) -> advantages.Advantages:
    extras = dict(setup.options)
    if "lengths_gk" in advantages.inputs(setup.estimator):
        extras["lengths_gk"] = lengths_gk
    return advantages.compute(setup.estimator, rewards_gk, ddof=setup.ddof, eps=setup.eps, clip=setup.clip, **extras)


def _lengths(rng: np.random.Generator, shape: tuple[int, ...], setup: Setup) -> Floats:
    if setup.length_cv == 0:
        return np.full(shape, setup.tokens)
    concentration = 1 / setup.length_cv**2
    return np.maximum(1.0, np.round(rng.gamma(concentration, setup.tokens / concentration, shape)))


def _enumerated(outcomes: Outcomes, k: int) -> tuple[Floats, Floats]:
    """Return every different group up to order, shape (groups, K), and its multinomial probability."""
    counts = list(_compositions(k, len(outcomes.values)))
    rewards_gk = np.array([np.repeat(outcomes.values, count) for count in counts])
    return rewards_gk, np.array([_multinomial(count, outcomes.probabilities) for count in counts])


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)


def _multinomial(counts: tuple[int, ...], probabilities: tuple[float, ...]) -> float:
    ways, left, chance = 1, sum(counts), 1.0
    for count, probability in zip(counts, probabilities, strict=True):
        ways *= math.comb(left, count)
        left -= count
        chance *= probability**count
    return ways * chance


def _quantiles(values_gk: Floats, weight_gk: Floats) -> tuple[float, ...]:
    """Return the smallest advantage at or below which each of :data:`LEVELS` of the probability lies."""
    order = np.argsort(values_gk, axis=None, kind="stable")
    below = np.cumsum(weight_gk.reshape(-1)[order])
    # A level that is met exactly must not be missed by rounding.
    at = np.searchsorted(below, np.array(LEVELS) * below[-1] - 1e-12)
    return tuple(float(value) for value in values_gk.reshape(-1)[order][np.minimum(at, len(order) - 1)])


def _recommend(rows: Sequence[Row], setup: Setup) -> tuple[int, str]:
    affordable = [row for row in rows if row.groups >= 1] or [rows[0]]
    best = max(row.efficiency for row in affordable)
    row = next(row for row in affordable if row.efficiency >= ENOUGH * best)
    if best == 0:
        return row.k, "no group size helps: rewards do not differ"
    reason = (
        f"the smallest with {ENOUGH:.0%} of the best efficiency that the budget buys: a rollout is worth "
        f"{row.efficiency:.2f} effective samples, {best:.2f} at best"
    )
    if row.groups < 1:
        reason = f"the smallest, and a budget of {setup.budget:,.0f} tokens does not buy one group of it"
    elif row.dead_step > DEAD_STEPS:
        tokens = math.ceil(math.log(DEAD_STEPS) / math.log(row.dead_step) * row.groups) * row.k * setup.tokens
        reason += (
            f"; {row.dead_step:.1%} of steps have no signal, {tokens:,.0f} tokens a step make that {DEAD_STEPS:.0%}"
        )
    return row.k, reason
