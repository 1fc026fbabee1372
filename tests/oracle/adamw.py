"""AdamW and the schedule once more, from their papers and the recipe's documentation alone, in float64.

Nothing here is shared with :mod:`levelhead.training.optim` or torch's optimizers, which it judges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from levelhead.recipe.training import Optimizer


def scheduled(config: Optimizer, update: int, updates: int) -> float:
    """Return the learning rate of an update, counted from 0, of a stage of so many updates.

    ``warmup_steps`` equal steps up to the peak; from there constant, or down to ``final_fraction`` of the peak at the
    last update, along a line or half a cosine.
    """
    peak = config.learning_rate
    if update < config.warmup_steps:
        return peak * (update + 1) / config.warmup_steps
    if config.schedule == "constant":
        return peak
    way = max(updates - 1 - config.warmup_steps, 1)
    left = 1.0 - min((update - config.warmup_steps) / way, 1.0)
    above = left if config.schedule == "linear" else math.sin(math.pi * left / 2) ** 2
    return peak * (config.final_fraction + (1.0 - config.final_fraction) * above)


@dataclass(frozen=True, slots=True)
class Moments:
    """What AdamW remembers of n tensors at K entries each.

    Attributes:
        first: Mean of gradients, shape (n, K).
        second: Mean of squared gradients, shape (n, K).
        steps: Updates that each tensor has seen, shape (n,).
    """

    first: Tensor
    second: Tensor
    steps: Tensor

    @classmethod
    def none(cls, n: int, k: int) -> Moments:
        """Return those of tensors that have seen no update."""
        zeros = torch.zeros(n, k, dtype=torch.float64)
        return cls(zeros, zeros.clone(), torch.zeros(n, dtype=torch.float64))


@dataclass(frozen=True, slots=True)
class Variant:
    """AdamW, or a well-known mistake in it.

    Attributes:
        what: How the mistake is called.
        sign: Of the gradient.
        coupled: Whether weight decay is added to the gradient, as in Adam with L2.
        corrected: Whether the moments' bias is.
        lost: Whether the moments are 0.
        fresh: Whether the count of steps is 0 besides.
        decays: Whether weights decay at all.
    """

    what: str = ""
    sign: float = 1.0
    coupled: bool = False
    corrected: bool = True
    lost: bool = False
    fresh: bool = False
    decays: bool = True


SOUND = Variant()
MISTAKES = (
    Variant("it climbs where it should descend", sign=-1.0),
    Variant("its moments are 0, as those of an optimizer just made: they were lost", lost=True),
    Variant("it is the first step of an optimizer just made: its state was lost", lost=True, fresh=True),
    Variant("the bias of its moments is not corrected", corrected=False),
    Variant("weight decay is added to the gradient (Adam with L2) and not to the weights", coupled=True),
    Variant("weights do not decay", decays=False),
)
"""Variants that a wrong step is compared with, to name what is wrong."""


def step(
    weights: Tensor, gradient: Tensor, moments: Moments, rate: float, config: Optimizer, variant: Variant = SOUND
) -> tuple[Tensor, Moments]:
    """Return the change of the weights by one update (Loshchilov and Hutter 2019, algorithm 2), and the new moments.

    Args:
        weights: Before it, shape (n, K).
        gradient: As the optimizer gets it, shape (n, K).
        moments: Before it.
        rate: Learning rate.
        config: For betas, eps and weight decay.
        variant: What to compute instead of AdamW.
    """
    beta1, beta2 = config.betas
    if variant.lost:
        none = Moments.none(*weights.shape)
        moments = none if variant.fresh else Moments(none.first, none.second, moments.steps)
    decay = config.weight_decay if variant.decays else 0.0
    gradient = variant.sign * gradient + (decay * weights if variant.coupled else 0.0)
    first = beta1 * moments.first + (1 - beta1) * gradient
    second = beta2 * moments.second + (1 - beta2) * gradient.square()
    steps = moments.steps + 1
    unbias1 = (1 - beta1**steps if variant.corrected else torch.ones_like(steps))[:, None]
    unbias2 = (1 - beta2**steps if variant.corrected else torch.ones_like(steps))[:, None]
    along = (first / unbias1) / ((second / unbias2).sqrt() + config.eps)
    decayed = 0.0 if variant.coupled else decay * weights
    return -rate * (along + decayed), Moments(first, second, steps)  # the optimizer descends
