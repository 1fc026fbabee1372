"""Terms and signs: the one place where "maximise" and "minimise" become plus and minus.

A term carries its natural value: the surrogate, the KL divergence, the entropy, as a textbook writes it and never
negated beforehand.  What is wanted of it is its *sense*.  :func:`as_loss` is the only function of the library that
turns a sense into a sign; the single loss (:func:`scalar_loss`), the merger of gradients and the policy losses all go
through it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Sense = Literal["maximize", "minimize"]
EXPECTED_SENSES: Mapping[str, Sense] = {"policy": "maximize", "kl": "minimize", "entropy": "maximize"}
"""What post-training wants of its terms, by name: a second entry, for the audit to hold a term's own sense against."""


def as_loss(value: Tensor, sense: Sense) -> Tensor:
    """Return ``value`` as a quantity to be minimised, any shape.

    Raises:
        ValueError: If ``sense`` is neither ``maximize`` nor ``minimize``.
    """
    if sense == "maximize":
        return -value
    if sense == "minimize":
        return value
    raise ValueError(f"sense must be 'maximize' or 'minimize', got {sense!r}")


def as_reward(value: Tensor, sense: Sense) -> Tensor:
    """Return ``value`` as a quantity to be maximised, any shape: the opposite of :func:`as_loss`."""
    return -as_loss(value, sense)


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of the objective.

    Attributes:
        name: What it is; ``policy`` for a reward surrogate, ``kl``, ``entropy``, or a name of your own.
        value: Natural value, a scalar tensor: a KL is a KL and an entropy an entropy, whatever is wanted of it.
        sense: What is wanted of it.
        weight: Coefficient, never negative: a term is reversed by its sense, not by its weight.
        task: The task it belongs to; ``None`` where it belongs to all.
    """

    name: str
    value: Tensor
    sense: Sense
    weight: float = 1.0
    task: str | None = None

    def __post_init__(self) -> None:
        if self.sense not in get_args(Sense):
            raise ValueError(f"term {self.name!r}: sense must be 'maximize' or 'minimize', got {self.sense!r}")
        if self.value.ndim != 0:
            raise ValueError(f"term {self.name!r}: value must be a scalar, got shape {tuple(self.value.shape)}")
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise ValueError(
                f"term {self.name!r}: weight must be finite and not negative, got {self.weight}; "
                "to reverse a term change its sense"
            )

    @property
    def label(self) -> str:
        """``name``, or ``name/task`` where the term belongs to a task."""
        return self.name if self.task is None else f"{self.name}/{self.task}"


def scalar_loss(terms: Sequence[Term]) -> Tensor:
    """Return the single loss of the terms: the sum of weight times signed value, a scalar to be minimised.

    Raises:
        ValueError: If there are no terms.
    """
    if not terms:
        raise ValueError("scalar_loss needs at least one term")
    losses = [term.weight * as_loss(term.value, term.sense) for term in terms]
    return torch.stack(losses).sum() if len(losses) > 1 else losses[0]
