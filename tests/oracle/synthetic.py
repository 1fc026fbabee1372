"""Made-up rollouts that tell every factor of the objective from every other, whatever the recipe.

Rewards are fractions, some negative, of another level and spread in each group, with ties; one group of each task has
no contrast.  Answers are of unequal length, some ran out of budget, and those of tasks of several turns have several.
The log-probabilities of policy, sampler, behaviour and reference lie apart by amounts of their own, spread so that
every clip and bound of the recipe is in force on both sides for some tokens and on neither for others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from levelhead.recipe.objective import LossSection
from levelhead.recipe.training import Grpo
from levelhead.records import Group, Rollout, Score, Turn
from levelhead.rollout.draws import generator
from levelhead.tasks.base import SingleTurnTask
from oracle import settings as every_key
from oracle.context import PreflightContext
from oracle.textbook.estimators import WORKFLOW_FEATURES
from oracle.textbook.records import Floats
from oracle.textbook.surrogates import clip_range

LONGEST = 12
"""Tokens of the longest answers: the completion budget here."""
GROUPS = 4
"""Groups of each task."""
FLAT = 1
"""Which group of a task has no contrast."""
MOST_ROLLOUTS = 4
"""Rollouts of a group, unless the estimator needs more."""
UPDATES = 2
"""Mini-batches of a batch, and passes over it."""
BATCHES = 2
"""Batches: coefficients, running statistics and the temperature move between them."""
_LENGTHS = (3, 7, 12, 5, 2, 9, 4, 11)


@dataclass(slots=True)
class Row:
    """One completion.

    Attributes:
        task: Name of its task.
        problem: Number of its group.
        attempt: Number of its rollout in the group.
        turn: Number of its turn in the rollout.
        turns: Turns of its rollout.
        truncated: Whether its rollout ran out of budget.
        context_ids: What it follows.
        completion_ids: Its tokens.
        lift: (t,) added to what the policy says of it, always.
        doubt: (t,) added to its entropies, always.
        moves: By batch and update, (t,) added to what the policy says of it then.
        sampled: By batch, (t,) what the sampler recorded, less what the policy says before the first update.
        behaviour: By batch, the same of the distribution that was sampled from.
        reference: (t,) the same of the reference.
    """

    task: str
    problem: int
    attempt: int
    turn: int
    turns: int
    truncated: bool
    context_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    lift: Floats = field(default_factory=lambda: np.zeros(0))
    doubt: Floats = field(default_factory=lambda: np.zeros(0))
    moves: list[list[Floats]] = field(default_factory=list)
    sampled: list[Floats] = field(default_factory=list)
    behaviour: list[Floats] = field(default_factory=list)
    reference: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def key(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Its tokens, by which it is known again."""
        return self.context_ids, self.completion_ids


def group_size(grpo: Grpo) -> int:
    """Return the rollouts of a made-up group: as many as the recipe's, few, and enough for its estimator."""
    return max(min(grpo.group_size, MOST_ROLLOUTS), grpo.advantage.make().min_group_size)


def make_rows(context: PreflightContext, grpo: Grpo) -> list[Row]:
    """Return the completions of a batch, group by group; each batch has the same ones."""
    draws = generator(context.seed, "made-up")
    banned = {*context.codec.stop_ids, context.codec.pad_id, *context.codec.tokenizer.all_special_ids}
    embedding: Any = context.policy.base.get_input_embeddings()
    size = min(context.codec.vocab_size, len(embedding.weight))
    words = np.array([token for token in range(size) if token not in banned])

    def some(n: int) -> tuple[int, ...]:
        return tuple(int(token) for token in draws.choice(words, n))

    rows: list[Row] = []
    shown: dict[tuple[int, int], tuple[int, ...]] = {}
    names = list(context.setup.tasks)
    # Groups of a task stand in pairs, so that each mini-batch has groups of every task.
    order = [(name, first + i) for first in range(0, GROUPS, UPDATES) for name in names for i in range(UPDATES)]
    for problem, (name, number) in enumerate(order):
        single = isinstance(context.setup.tasks[name], SingleTurnTask)
        for attempt in range(group_size(grpo)):
            turns = 1 if single else 1 + (attempt + number) % 3
            truncated = attempt % 4 == (2 + number) % 4
            context_ids = some(4) if not attempt else rows[-1].context_ids[:4]
            for turn in range(turns):
                if turn and attempt % 2:  # two rollouts in one state
                    context_ids = shown.get((problem, turn), context_ids)
                shown[problem, turn] = context_ids
                length = _LENGTHS[(attempt + 3 * number + 2 * turn) % len(_LENGTHS)]
                length = LONGEST if truncated and turn == turns - 1 else min(length, LONGEST - 1)
                row = Row(name, problem, attempt, turn, turns, truncated, context_ids, some(length))
                _spread(row, every_key.loss(grpo.loss), draws)
                rows.append(row)
                context_ids = (*context_ids, *row.completion_ids, *some(2))
    return rows


def _spread(row: Row, loss: LossSection, draws: np.random.Generator) -> None:
    """Give a completion its log-probabilities."""
    t = len(row.completion_ids)
    row.lift, row.doubt = draws.uniform(-3.0, -0.1, t), draws.uniform(0.0, 1.0, t)
    row.reference = draws.uniform(-0.6, 0.6, t)
    for _ in range(BATCHES):
        row.sampled.append(0.35 * _gaps(loss, draws, t))
        row.behaviour.append(-_corrections(loss, draws, t))
        row.moves.append([_gaps(loss, draws, t) for _ in range(UPDATES * UPDATES)])
    row.moves[0][0] = np.zeros(t)  # the first update finds the weights that sampled the batch


def _gaps(loss: LossSection, draws: np.random.Generator, t: int) -> Floats:
    """Log-ratios of new to old policy: a third of them below the clip range, a third within it, a third above."""
    low, high = clip_range(loss)
    if loss.kind == "gmpo":
        bounds = -min(low, 1.5), min(high, 1.5)
    else:
        bounds = math.log(max(1 - low, 0.2)), math.log(1 + min(high, 5.0))
    if getattr(loss, "dual_clip", None) is not None:
        bounds = bounds[0], math.log(min(max(1 + high, loss.dual_clip), 6.0))
    bounds = bounds[0] or -0.3, bounds[1] or 0.3
    if loss.kind in ("gspo", "gspo_token"):  # their ratio is the answer's
        around = draws.uniform(-0.2, 0.2, t)
        return np.asarray(around - around.mean() + _around(bounds, draws, 1))
    return _around(bounds, draws, t)


def _around(bounds: tuple[float, float], draws: np.random.Generator, n: int) -> Floats:
    """Numbers below, within and above two bounds, one third each, none of them close to a bound."""
    low, high = bounds
    width = (high - low) / 2
    below, above = low - draws.uniform(0.1, 0.6, n) * width, high + draws.uniform(0.1, 0.6, n) * width
    within = draws.uniform(low + 0.1 * width, high - 0.1 * width, n)
    which = draws.integers(0, 3, n)
    return np.where(which == 0, below, np.where(which == 1, within, above))


def _corrections(loss: LossSection, draws: np.random.Generator, t: int) -> Floats:
    """Log-ratios of the policy to the distribution that was sampled from, about the bounds of the correction."""
    bounds = math.log(max(loss.importance_low, 0.3)), math.log(min(max(loss.importance_high, 0.35), 20.0))
    if loss.importance is not None and loss.importance.startswith("sequence"):
        around = draws.uniform(-0.2, 0.2, t)
        return np.asarray(around - around.mean() + _around(bounds, draws, 1) / t)
    return _around(bounds, draws, t)


def make_groups(
    context: PreflightContext, grpo: Grpo, rows: Sequence[Row], batch: int, before: Sequence[Floats]
) -> tuple[list[Group], list[str]]:
    """Return the groups of a batch, scored, and the stratum of each.

    Args:
        context: Of the preflight.
        grpo: The ``grpo`` section.
        rows: Completions.
        batch: Number of the batch.
        before: (t,) what the policy says of each completion before the first update.
    """
    groups, strata = [], []
    seen: Counter[str] = Counter()
    for problem in sorted({row.problem for row in rows}):
        members = [(row, logp) for row, logp in zip(rows, before, strict=True) if row.problem == problem]
        name = members[0][0].task
        task, choice = context.setup.tasks[name], context.prompts[name]
        prompt = choice[seen[name] % len(choice)]
        rollouts = []
        for attempt in sorted({row.attempt for row, _ in members}):
            own = [(row, logp) for row, logp in members if row.attempt == attempt]
            turns = tuple(_turn(row, logp, batch) for row, logp in own)
            score = make_score(grpo, problem + batch, attempt, seen[name] == FLAT)
            paid = tuple(round(0.4 * math.sin(2.9 * attempt + 1.3 * n + problem), 3) for n in range(len(turns)))
            paid = paid if len(turns) > 1 and seen[name] != FLAT else ()
            rollouts.append(Rollout(prompt.id, turns, score, 0, ("",) * len(turns), turn_rewards=paid))
        groups.append(Group(prompt, tuple(rollouts)))
        seen[name] += 1
        strata.append(next(iter(task.strata(prompt).values()), "none"))
    return groups, strata


def _turn(row: Row, before: Floats, batch: int) -> Turn:
    ended = row.turn < row.turns - 1 or not row.truncated
    sampled, behaviour = before + row.sampled[batch], before + row.behaviour[batch]
    return Turn(
        row.context_ids,
        row.completion_ids,
        tuple(sampled.astype(np.float32).tolist()),
        tuple(behaviour.astype(np.float32).tolist()),
        "stop" if ended else "length",
    )


_LEVELS = (-1.37, 0.42, 2.13, 0.05, -0.61, 1.18)
_SPREADS = (0.71, 0.13, 1.90, 0.38, 1.07)
_SHAPE = (0.0, 1.0, -0.83, 0.0, 0.37, -1.21, 0.64, -0.29)


def make_score(grpo: Grpo, number: int, attempt: int, flat: bool) -> Score:
    """Return a fractional score with a level and spread of its group; ``flat`` ones are all alike in a group."""
    level, spread = _LEVELS[number % len(_LEVELS)], 0.0 if flat else _SPREADS[number % len(_SPREADS)]
    total = level + spread * (_SHAPE[attempt % len(_SHAPE)] + 0.01 * (attempt // len(_SHAPE)))
    names = list(dict.fromkeys([*(getattr(grpo.advantage, "weights", None) or {}), "right", "form"]))
    parts = {
        name: level / (i + 1) + spread * (i + 1) * math.sin(1.7 * attempt + i + number)
        for i, name in enumerate(names)
        if not (i and attempt % 3 == 1)
    }
    wanted = getattr(grpo.advantage, "feature_weights", None) or WORKFLOW_FEATURES
    # A group of one reward is told apart by structure.
    features = {name: round(0.5 + 0.4 * math.cos(2.3 * attempt + i + number), 3) for i, name in enumerate(wanted)}
    return Score(round(total, 4), parts, info={"features": features})


def small(shares: Mapping[str, float], length: int, budget: int) -> Mapping[str, int]:
    """Return a length penalty's numbers of tokens for answers of at most ``length``, in the same proportions.

    Args:
        shares: Numbers of tokens by key.
        length: The new completion budget.
        budget: The recipe's.
    """
    return {
        key: max(1, min(length, round(tokens * length / budget))) if tokens else 0 for key, tokens in shares.items()
    }
