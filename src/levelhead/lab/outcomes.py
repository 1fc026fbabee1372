"""Reward distributions to simulate with: a chance of success, values with probabilities, or measured rewards."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from levelhead.errors import InputError


@dataclass(frozen=True, slots=True)
class Outcomes:
    """A discrete distribution of one rollout's reward.

    Attributes:
        label: What it is called in tables.
        values: Different rewards in ascending order.
        probabilities: Chance of each, summing to 1.
    """

    label: str
    values: tuple[float, ...]
    probabilities: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The expected reward of one rollout."""
        return math.fsum(v * p for v, p in zip(self.values, self.probabilities, strict=True))

    @property
    def std(self) -> float:
        """Population standard deviation of the reward."""
        mean = self.mean
        return math.sqrt(math.fsum(p * (v - mean) ** 2 for v, p in zip(self.values, self.probabilities, strict=True)))

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Draw independent rewards of this shape."""
        return np.asarray(rng.choice(np.asarray(self.values), size=shape, p=np.asarray(self.probabilities)))

    def to_json(self) -> dict[str, object]:
        """Return a dict for a JSON document."""
        return {"label": self.label, "values": list(self.values), "probabilities": list(self.probabilities)}


def bernoulli(success: float) -> Outcomes:
    """Return reward 1 with probability ``success`` and 0 otherwise.

    Raises:
        ValueError: ``success`` is outside [0, 1].
    """
    if not 0 <= success <= 1:
        raise ValueError(f"a success probability lies between 0 and 1, got {success}")
    return Outcomes(f"success {success:g}", (0.0, 1.0), (1 - success, success))


def weighted(probabilities: Mapping[float, float], label: str = "") -> Outcomes:
    """Return the distribution with these probabilities by reward; they may be counts, and are made to sum to 1.

    Raises:
        ValueError: No entry, a reward or weight that is not finite, or weights that are negative or sum to 0.
    """
    items = sorted((value, weight) for value, weight in probabilities.items() if weight != 0)
    total = math.fsum(weight for _, weight in items)
    if not items or not 0 < total < math.inf or any(weight < 0 for _, weight in items):
        raise ValueError("a reward distribution needs weights of 0 or more, one of them above 0")
    if not all(math.isfinite(value) for value, _ in items):
        raise ValueError("a reward distribution holds a reward that is not finite")
    name = label or "rewards " + ", ".join(f"{value:g}={weight / total:g}" for value, weight in items)
    return Outcomes(name, tuple(value for value, _ in items), tuple(weight / total for _, weight in items))


def empirical(rewards: Iterable[float], label: str = "measured rewards") -> Outcomes:
    """Return the distribution of measured rewards.

    Raises:
        ValueError: No reward, or one that is not finite.
    """
    return weighted(Counter(float(reward) for reward in rewards), label)


def parse_distribution(text: str) -> Outcomes:
    """Return the distribution written as ``0=0.5,0.2=0.3,1=0.2``.

    Raises:
        InputError: The text is not of that form, or no distribution.
    """
    try:
        pairs = [(float(value), float(weight)) for value, weight in (part.split("=") for part in text.split(","))]
        if len({value for value, _ in pairs}) < len(pairs):
            raise ValueError("a reward is named twice")
        return weighted(dict(pairs))
    except ValueError as error:
        raise InputError(
            f"--distribution {text!r}: {error}\nwrite rewards and their probabilities as 0=0.5,0.2=0.3,1=0.2"
        ) from None


def read_rewards(path: Path) -> Outcomes:
    """Read measured rewards from a file.

    ``.json`` holds a list of numbers, ``.jsonl`` a number or an object with ``reward`` on each line, anything else
    numbers separated by white space or commas.

    Raises:
        InputError: The file cannot be read, or holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from None
    try:
        if path.suffix == ".json":
            rewards = [_number(entry) for entry in json.loads(text)]
        elif path.suffix == ".jsonl":
            rewards = [_number(json.loads(line)) for line in text.splitlines() if line.strip()]
        else:
            rewards = [float(word) for word in text.replace(",", " ").split()]
        return empirical(rewards, label=path.name)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{path}: {error}\nit must hold rewards: a JSON list, JSON lines with a number or a 'reward', or numbers"
        ) from None


def _number(entry: object) -> float:
    if isinstance(entry, Mapping) and "reward" in entry:
        entry = entry["reward"]
    if isinstance(entry, bool) or not isinstance(entry, int | float):
        raise ValueError(f"{entry!r} is not a reward")
    return float(entry)
