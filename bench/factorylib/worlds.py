"""Task families of the factory: what a prompt asks for, what an answer is paid, and how a fresh policy answers.

An answer is a sequence of at most ``length`` tokens out of ``vocab``; token 0 ends it where the family has an end.
Rewards are functions of the tokens alone.  ``true`` is what the task is about; ``paid`` is what training sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

READABLE = 0.6
"""Share of the filler that must be right for an answer to be read at all."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Answers:
    """Sampled answers: tokens ``(B, G, L)``, whether each position is part of the answer, and what was asked for."""

    tokens: Ints
    mask: Floats
    targets: Ints
    vocab: int

    @property
    def right(self) -> Floats:
        """1 where a token is the one asked for and part of the answer."""
        return (self.tokens == self.targets[:, None, :]) * self.mask

    @property
    def lengths(self) -> Floats:
        return self.mask.sum(-1)


Reward = Callable[[Answers], Mapping[str, Floats]]
"""Named parts of a reward, ``(B, G)`` each; the total is their sum."""


def exact(a: Answers) -> Mapping[str, Floats]:
    """1 for the whole answer, else 0."""
    return {"accuracy": (a.right.sum(-1) >= a.targets.shape[1]).astype(float)}


def partial(a: Answers) -> Mapping[str, Floats]:
    """The share of tokens that are right."""
    return {"score": a.right.mean(-1)}


def prefix(a: Answers) -> Mapping[str, Floats]:
    """The share of the answer that is right before the first mistake."""
    return {"score": np.cumprod(a.right, -1).mean(-1)}


def any_right(a: Answers) -> Mapping[str, Floats]:
    """1 when any token is the first one asked for."""
    hit = (a.tokens == a.targets[:, None, :1]) * a.mask
    return {"accuracy": (hit.sum(-1) > 0).astype(float)}


def signed(a: Answers) -> Mapping[str, Floats]:
    """1 for the whole answer, else -1."""
    return {"outcome": 2 * exact(a)["accuracy"] - 1}


def graded(a: Answers) -> Mapping[str, Floats]:
    """Marks from 0 to 5 for the tokens that are right."""
    return {"mark": np.round(5 * a.right.mean(-1))}


def distance(a: Answers) -> Mapping[str, Floats]:
    """Minus the mean distance of tokens from those asked for, in vocabularies."""
    return {"distance": -(np.abs(a.tokens - a.targets[:, None, :]) * a.mask).mean(-1) / a.vocab}


def unit_tests(a: Answers) -> Mapping[str, Floats]:
    """A fifth for each pair of tokens that is right, the rest when all are."""
    pairs = a.right[..., : a.right.shape[-1] // 2 * 2].reshape(*a.right.shape[:2], -1, 2).min(-1)
    return {"tests": 0.5 * pairs.mean(-1) + 0.5 * (a.right.min(-1) > 0)}


def parity(a: Answers) -> Mapping[str, Floats]:
    """1 when the sum of the tokens is even exactly when the first token asked for is."""
    return {"accuracy": ((a.tokens * a.mask).sum(-1) % 2 == a.targets[:, None, 0] % 2).astype(float)}


def ordered(a: Answers) -> Mapping[str, Floats]:
    """The share of neighbours that do not fall."""
    return {"order": (np.diff(a.tokens, axis=-1) >= 0).mean(-1)}


def distinct(a: Answers) -> Mapping[str, Floats]:
    """The share of tokens that differ from all before them."""
    ordered_tokens = np.sort(a.tokens, -1)
    return {"distinct": ((np.diff(ordered_tokens, axis=-1) > 0).sum(-1) + 1) / a.tokens.shape[-1]}


def counted(a: Answers) -> Mapping[str, Floats]:
    """The share of tokens in the upper half of the vocabulary."""
    return {"style": ((a.tokens >= a.vocab // 2) * a.mask).mean(-1)}


def form_and_outcome(a: Answers) -> Mapping[str, Floats]:
    """1 for the first token (the form) and 1 for all others (the outcome)."""
    return {"format": a.right[..., 0], "accuracy": (a.right[..., 1:].min(-1) > 0).astype(float)}


def form_and_share(a: Answers) -> Mapping[str, Floats]:
    """0.2 for the first token, and the share of the others that are right."""
    return {"format": 0.2 * a.right[..., 0], "correctness": a.right[..., 1:].mean(-1)}


def brief(a: Answers) -> Mapping[str, Floats]:
    """Half for the first tokens, half for an early end after them."""
    return {
        "accuracy": 0.7 * a.right[..., :2].mean(-1),
        "brevity": 0.3 * (1 - a.lengths / a.targets.shape[1]) * a.right[..., 0],
    }


def thorough(a: Answers) -> Mapping[str, Floats]:
    """The share of all positions that are right: only long answers get it all."""
    return {"coverage": a.right.sum(-1) / a.targets.shape[1]}


def judged(a: Answers) -> Mapping[str, Floats]:
    """A judge's mark in tenths: the square of the share that is right."""
    return {"judge": np.round(10 * a.right.mean(-1) ** 1.5) / 10}


@dataclass(frozen=True, slots=True)
class World:
    """One family.

    Attributes:
        reward: What an answer is worth.
        length: Tokens of an answer, at most.
        vocab: Tokens to choose from.
        skill: Range of a fresh policy's chance of the right token.
        ends: Whether token 0 ends an answer.
        noise: Range of the deviation of Gaussian noise on the reward.
        flips: Range of the share of rewards that are turned round.
        spread: How much prompts differ in difficulty, in logits.
        sharp: Range of the extra logit that a fresh policy gives its favourite: how little entropy it has.
        curriculum: Whether prompts get harder as the run goes on.
        top: Largest reward.
        kind: What sort of sound run it makes.
    """

    reward: Reward
    length: int = 6
    vocab: int = 12
    skill: tuple[float, float] = (0.2, 0.6)
    ends: bool = False
    noise: tuple[float, float] = (0.0, 0.0)
    flips: tuple[float, float] = (0.0, 0.0)
    spread: float = 0.7
    sharp: tuple[float, float] = (0.0, 1.5)
    curriculum: bool = False
    top: float = 1.0
    kind: str = "plain"

    @property
    def top_scale(self) -> float:
        """What a reward of 1 is here: the largest one, or 1 where that is 0."""
        return abs(self.top) or 1.0


WORLDS: dict[str, World] = {
    "bandit": World(exact, length=1, vocab=8, skill=(0.1, 0.5)),
    "bandit-many-arms": World(exact, length=1, vocab=64, skill=(0.02, 0.2), kind="sparse"),
    "exact-3": World(exact, length=3, skill=(0.4, 0.7)),
    "exact-6": World(exact, skill=(0.5, 0.8), kind="sparse"),
    "flat-start": World(exact, length=5, skill=(0.3, 0.42), kind="long flat start"),
    "partial": World(partial),
    "partial-long": World(partial, length=16, vocab=24),
    "partial-wide": World(partial, length=8, vocab=128, skill=(0.1, 0.5)),
    "prefix": World(prefix, length=8),
    "any-right": World(any_right, skill=(0.02, 0.08)),
    "signed": World(signed, length=3, skill=(0.45, 0.75), top=1.0),
    "graded": World(graded, length=10, top=5.0),
    "distance": World(distance, length=4, vocab=16, top=0.0),
    "unit-tests": World(unit_tests, length=8, skill=(0.4, 0.7)),
    "parity": World(parity, length=3, spread=0.1),
    "ordered": World(ordered, length=8),
    "distinct": World(distinct, length=8, vocab=16),
    "style": World(counted, length=12, vocab=32),
    "form-and-outcome": World(form_and_outcome, length=4, skill=(0.4, 0.7), top=2.0),
    "form-and-share": World(form_and_share, length=8, top=1.2),
    "noisy-reward": World(partial, length=8, noise=(0.2, 0.6), kind="noisy"),
    "noisy-label": World(exact, length=2, skill=(0.3, 0.6), flips=(0.05, 0.2), kind="noisy"),
    "noisy-judge": World(judged, length=8, noise=(0.05, 0.2), kind="noisy"),
    "near-ceiling": World(exact, length=2, skill=(0.93, 0.98), spread=0.3, kind="near ceiling"),
    "near-ceiling-partial": World(partial, length=8, skill=(0.88, 0.95), spread=0.3, kind="near ceiling"),
    "mostly-dead": World(exact, length=2, skill=(0.4, 0.7), spread=5.0, kind="90% zero-std groups"),
    "low-entropy": World(exact, length=3, skill=(0.75, 0.92), sharp=(0.0, 0.0), spread=1.5, kind="low entropy"),
    "curriculum": World(partial, length=8, skill=(0.5, 0.7), curriculum=True, kind="curriculum"),
    "curriculum-exact": World(exact, length=2, skill=(0.6, 0.8), curriculum=True, kind="curriculum"),
    "brief": World(brief, length=16, ends=True, kind="answers get shorter"),
    "thorough": World(thorough, length=16, ends=True, kind="answers get longer"),
    "open-ended": World(judged, length=12, vocab=24, ends=True),
    "open-exact": World(any_right, length=12, vocab=24, skill=(0.02, 0.06), ends=True),
}
"""Families by name; leaving one out means leaving out all runs of it."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts of one run: what each asks for ``(S, L)``, and a fresh policy's logits ``(S, L, V)``."""

    targets: Ints
    logits: Floats


def make_prompts(world: World, count: int, filler: int, rng: np.random.Generator) -> Prompts:
    """Draw prompts, most of whose wanted tokens are the same for all, so that there is something to generalise.

    Args:
        world: The family.
        count: Prompts.
        filler: Tokens after the answer that a fresh policy nearly knows: what most of a text is.  They stand in the
            targets too, and what is written is worth nothing where they are lost (:func:`pays`).
        rng: Source of all of it.
    """
    length, vocab = world.length, world.vocab
    low = 1 if world.ends else 0
    common = rng.integers(low, vocab, length)
    own = rng.integers(low, vocab, (count, length))
    targets = np.where(rng.random(length)[None] < 0.6, common[None], own)
    skill = rng.uniform(*world.skill)
    logits = rng.normal(0, 0.3, (count, length, vocab))
    lift = np.log(skill / (1 - skill)) + np.log(vocab - 1) + world.spread * rng.normal(0, 1, (count, 1))
    np.put_along_axis(
        logits, targets[..., None], np.broadcast_to(np.maximum(lift, -2)[..., None], (count, length, 1)), -1
    )
    favourite = rng.integers(low, vocab, (1, length))
    extra = rng.uniform(*world.sharp)
    logits[:, np.arange(length), favourite[0]] += extra
    if world.ends:
        # Answers end after about half of the room.
        logits[..., 0] = np.log(np.exp(logits[..., 1:]).sum(-1)) + np.log(1.6 / length)
        logits[:, 0, 0] = -20.0
    if world.curriculum:
        logits -= np.linspace(0, 1.6, count)[:, None, None] * (np.arange(vocab) == targets[..., None])
    if filler:
        certain = rng.integers(low, vocab, (1, filler)) * np.ones((count, 1), dtype=np.int64)
        tail = rng.normal(0, 0.3, (count, filler, vocab))
        chance = rng.uniform(0.9, 0.995)
        lift = np.log(chance / (1 - chance) * (vocab - 1))
        tail += lift * (np.arange(vocab) == certain[..., None])
        targets, logits = np.concatenate([targets, certain], 1), np.concatenate([logits, tail], 1)
    return Prompts(targets, logits)


def pays(world: World, answers: Answers) -> dict[str, Floats]:
    """Parts of the reward; all of them nothing where too little of the filler is what it should be."""
    n = world.length
    head = Answers(answers.tokens[..., :n], answers.mask[..., :n], answers.targets[:, :n], answers.vocab)
    parts = {name: np.array(value) for name, value in world.reward(head).items()}
    if answers.tokens.shape[-1] > n:
        readable = answers.right[..., n:].mean(-1) >= READABLE
        floor = -1.0 if world.top == 0 else 0.0
        parts = {name: np.where(readable, value, np.minimum(floor, value)) for name, value in parts.items()}
    return parts
