"""Whether answers are likelier behind their own prompts than behind others', as supervised fine-tuning teaches."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from levelhead.message import Message
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.records import Event, Prompt
from levelhead.rollout.draws import derive, generator
from levelhead.tasks.base import SingleTurnTask, Split
from levelhead.training.prepare import Setup

Floats = NDArray[np.float64]
BY_HEART = Message(
    "{task}: after SFT perfect answers to training prompts fit their own prompts (p = {train:.1g}), those to held-out "
    "prompts fit their own no better than others (p = {held_out:.2g}): the demonstrations have been learnt by heart. "
    "Either the answers belong to other prompts, or the policy does not read yet; look at some rows",
    "{task}：SFT 之后，训练题的标准答案与自己的题相配（p = {train:.1g}），留出题的标准答案与自己的题却不比与别的题更相"
    "配（p = {held_out:.2g}）：示范被背了下来。要么答案与题目错位，要么策略还不会读题；请查看几行数据",
)

BELONG = 0.01
"""p-value from which answers fit their own prompts better than others'."""
UNRELATED = 0.05
"""p-value above which they do not."""
ASKED = 16
"""Rows of a task and split that a policy is asked about after supervised fine-tuning."""
FEWEST, MOST_ALIKE = 8, 0.7
"""Rows without which nothing is asked, and the share of them that may have one answer."""
PACKED = 1 << 13
"""Tokens that are computed at once."""


@torch.no_grad()
def likelihoods(policy: Policy, prompts: Sequence[Prompt], answers: Sequence[str]) -> Floats:
    """Return how much likelier answer j is behind prompt i than behind the others, in nats a token, (n, n).

    Args:
        policy: Asked at temperature 1.
        prompts: n of them.
        answers: One a prompt.
    """
    n = len(prompts)
    sequences = []
    for i, prompt in enumerate(prompts):
        for answer in answers:
            pair = policy.codec.demonstration(prompt.messages, answer, prompt.chat)
            sequences.append(TokenSequence(pair.context_ids, pair.completion_ids, i))
    fit = np.zeros(n * n)
    for micro in policy.pack(sequences, max(PACKED, max(len(s.input_ids) for s in sequences))):
        parts = torch.split(policy.score(micro).logp.float(), list(micro.lengths))
        for index, part in zip(micro.indices, parts, strict=True):
            fit[index] = float(part.mean())
    fit_nn = fit.reshape(n, n)
    centred: Floats = fit_nn - fit_nn.mean(axis=0, keepdims=True)
    return centred


class Fit(NamedTuple):
    """How well columns fit the rows that they are paired with.

    Attributes:
        own: Mean of the paired entries.
        others: Mean of all others.
        p: p-value of the own mean against random pairings: 1 where the pairing says nothing.
    """

    own: float
    others: float
    p: float


def permutation_fit(fit_nn: Floats, rng: np.random.Generator, tries: int = 999) -> Fit:
    """Return whether entries (i, i) of a square matrix are higher than random pairings would be.

    A Monte Carlo permutation test of the trace (Phipson and Smyth 2010: p = (1 + b) / (1 + m)).

    Args:
        fit_nn: How well column j fits row i, shape (n, n).
        rng: Draws the permutations.
        tries: Permutations; p cannot be less than 1 / (1 + tries).
    """
    n = len(fit_nn)
    own = float(np.trace(fit_nn)) / max(n, 1)
    others = float(fit_nn.sum() - np.trace(fit_nn)) / max(n * (n - 1), 1)
    if n < 2:
        return Fit(own, others, 1.0)
    high = 0
    for done in range(0, tries, 20_000):
        order_mn = np.argsort(rng.random((min(tries - done, 20_000), n)), axis=1)
        means_m = fit_nn[np.arange(n), order_mn].mean(axis=1)
        high += int((means_m >= own - 1e-12).sum())
    return Fit(own, others, (1 + high) / (1 + tries))


def pair_events(setup: Setup, step: int) -> list[Event]:
    """Tell of tasks whose demonstrations have been learnt by heart: what is held out fits its own prompts no better.

    Either the policy does not read yet, or there is nothing to read: the answers belong to other prompts.

    Args:
        setup: Tasks, and the policy after supervised fine-tuning.
        step: At which it ended.
    """
    events = []
    for name, task in setup.tasks.items():
        if isinstance(task, SingleTurnTask) and not task.demonstrates:
            train, held_out = _fit_of(setup, task, "train"), _fit_of(setup, task, "eval")
            if train is not None and held_out is not None and (event := heart_event(name, train, held_out, step)):
                events.append(event)
    return events


def heart_event(name: str, train: Fit, held_out: Fit, step: int) -> Event | None:
    """Return the event of one task, by the fits of its training rows and of its held-out rows."""
    if train.p > BELONG or held_out.p <= UNRELATED:
        return None
    text = BY_HEART(task=name, train=train.p, held_out=held_out.p)
    evidence = {
        "task": name,
        "p_train": train.p,
        "p_held_out": held_out.p,
        "nats_held_out": held_out.own - held_out.others,
    }
    return Event(step, "learnt-by-heart", "warning", text, "warn", evidence)


def _fit_of(setup: Setup, task: SingleTurnTask, split: Split) -> Fit | None:
    """Return how answers of a split fit; ``None`` where they are too few, or nearly all alike."""
    seed = derive(setup.recipe.seed, "pairs", task.name, split)
    rows = [(p, answer[0]) for p in itertools.islice(task.prompts(split, seed), ASKED) if (answer := task.oracle(p))]
    most = Counter(" ".join(text.casefold().split()) for _, text in rows).most_common(1)
    if len(rows) < FEWEST or most[0][1] > MOST_ALIKE * len(rows):
        return None
    fit_nn = likelihoods(setup.policy, [prompt for prompt, _ in rows], [text for _, text in rows])
    return permutation_fit(fit_nn, generator(seed, "permutations"))
