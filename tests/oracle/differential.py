"""What the textbook says of a rehearsal, token by token, beside what the trainer did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from oracle.rehearsal import Batch, Rehearsal, Update
from oracle.textbook import Answer, Attempt, Book, Problem, Settings, Slopes
from oracle.textbook.book import Worth, entropy_threshold
from oracle.textbook.records import Floats

EXACT = 1e-5
"""Relative error of a slope up to which it is the textbook's: some hundred roundings in float32."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Another arithmetic than the recipe's, with what is to be said where the trainer's is this one.

    Attributes:
        says: Completes "the gradient is that of an update in which ...".
        settings: The recipe, changed.
        answer: Changes an answer before its slopes are taken.
        apart: Whether each micro-batch is taken for a whole update.
        worths: Changes what the rollouts of a batch are worth.
        kl: Factor of the KL coefficients.
        old: Whose log-probabilities are taken for the old ones.
        scale: Factor of the whole loss of an update.
    """

    says: str
    settings: Settings
    answer: Callable[[Answer], Answer] = lambda answer: answer
    apart: bool = False
    worths: Callable[[list[Worth], Sequence[Problem]], list[Worth]] = lambda worths, _problems: worths
    kl: float = 1.0
    old: Literal["", "new", "sampled", "behaviour", "scored", "previous"] = ""
    scale: Callable[[Update], float] = lambda _update: 1.0


@dataclass(slots=True)
class Told:
    """One completion of an update: the textbook's slopes and the trainer's.

    Attributes:
        answer: The completion.
        want: Its slopes by the textbook.
        policy: (t,) those of the surrogate, with the tokens that a loss by covariance treats otherwise.
        actual: (t,) the trainer's, along the log-probabilities.
        doubt: (t,) the trainer's, along the entropies.
        row: Number of the completion.
    """

    answer: Answer
    want: Slopes
    policy: Floats
    actual: Floats
    doubt: Floats
    row: int

    @property
    def total(self) -> Floats:
        """(t,) slopes of the loss by the textbook."""
        return self.policy + self.want.kl

    @property
    def size(self) -> Floats:
        """(t,) size of what the total is the sum of."""
        return np.maximum(np.abs(self.want.policy), np.abs(self.want.other)) + np.abs(self.want.kl)


@dataclass(slots=True)
class Comparison:
    """One update by both.

    Attributes:
        update: As the trainer made it.
        told: Its completions.
    """

    update: Update
    told: list[Told] = field(default_factory=list)

    @property
    def error(self) -> float:
        """Largest difference along a log-probability, relative to the size of what it is made of."""
        return _error([(t.total, t.actual, t.size) for t in self.told])

    @property
    def doubt(self) -> float:
        """The same along the entropies."""
        return _error([(t.want.entropy, t.doubt, np.abs(t.want.entropy)) for t in self.told])


def _error(columns: Sequence[tuple[Floats, Floats, Floats]]) -> float:
    """Largest ``|want - actual| / size``, where size is at least a hundredth of its mean over the update."""
    want, actual, size = (np.concatenate(column) for column in zip(*columns, strict=True))
    gap = np.abs(want - actual)
    floor = 0.01 * float(size[size > 0].mean()) if (size > 0).any() else 0.0
    if floor == 0.0:
        return float(np.inf) if (gap > 0).any() else 0.0
    return float((gap / np.maximum(size, floor)).max())


def compare(rehearsal: Rehearsal, variant: Variant | None = None) -> list[Comparison]:
    """Return every update by the textbook and by the trainer.

    Args:
        rehearsal: What the trainer did.
        variant: Another arithmetic than the recipe's to compare it with.

    Raises:
        UnprovedError: The recipe asks for something that the textbook does not have.
    """
    arithmetic = variant or Variant("", rehearsal.settings)
    book = Book(arithmetic.settings, arithmetic.kl)
    comparisons: list[Comparison] = []
    for number, batch in enumerate(rehearsal.batches):
        problems = _problems(rehearsal, batch)
        worths = arithmetic.worths(book.advantages(problems), problems)
        learns = _learns(arithmetic.settings, batch)
        for update in rehearsal.updates:
            if update.batch != number:
                continue
            answers = [
                arithmetic.answer(_answer(rehearsal, arithmetic, update, worths, learns, r)) for r in update.rows
            ]
            doubts = [_whole(update, r, rehearsal, entropy=True) for r in update.rows]
            slopes = [
                _scaled(s, arithmetic.scale(update)) for s in _slopes(book, answers, doubts, apart=arithmetic.apart)
            ]
            told = [_told(update, a, s, r) for a, s, r in zip(answers, slopes, update.rows, strict=True)]
            _choose(told)
            comparisons.append(Comparison(update, told))
        book.close()
    return comparisons


def needs_recompute(settings: Settings) -> bool:
    """Whether tokens are scored by the trainer before the first update; those are the old log-probabilities then."""
    grpo = settings.grpo
    uses_entropy = "entropies_gkt" in grpo.advantage.make().needs or grpo.loss.top_entropy is not None
    return uses_entropy or grpo.loss.importance is not None or grpo.kl.where == "reward"


def _problems(rehearsal: Rehearsal, batch: Batch) -> list[Problem]:
    rows = rehearsal.rows
    problems = []
    for number, (group, stratum) in enumerate(zip(batch.groups, batch.strata, strict=True)):
        attempts = []
        for k, rollout in enumerate(group.rollouts):
            own = [i for i, row in enumerate(rows) if (row.problem, row.attempt) == (number, k)]
            scored = [batch.scored[i] for i in own if i in batch.scored]
            told = [batch.told[i][0] for i in own if i in batch.told]
            none = np.zeros(0)
            doubts = np.concatenate([h for _, h in scored]) if scored else none
            drift = [logp - ref for (logp, _), ref in zip(scored, told, strict=False)]
            score = rollout.score
            attempts.append(
                Attempt(
                    rollout.reward,
                    score.parts if score else {},
                    score.info["features"] if score else {},
                    tuple(len(rows[i].completion_ids) for i in own),
                    doubts,
                    np.concatenate(drift) if drift else none,
                    rollout.turn_rewards,
                    tuple(rows[i].context_ids for i in own),
                )
            )
        problems.append(Problem(group.prompt.task, stratum, tuple(attempts)))
    return problems


def _learns(settings: Settings, batch: Batch) -> Mapping[int, Floats]:
    """Which tokens of each completion are learnt from, by their entropy before the first update."""
    fraction = settings.grpo.loss.top_entropy
    if fraction is None or not batch.scored:
        return {}
    least = entropy_threshold(fraction, [h for _, h in batch.scored.values()])
    return {row: np.where(h >= least, 1.0, 0.0) for row, (_, h) in batch.scored.items()}


def _answer(
    rehearsal: Rehearsal,
    variant: Variant,
    update: Update,
    worths: Sequence[Worth],
    learns: Mapping[int, Floats],
    number: int,
) -> Answer:
    row, batch = rehearsal.rows[number], rehearsal.batches[update.batch]
    t = len(row.completion_ids)
    new = _whole(update, number, rehearsal)
    worth = worths[row.problem]
    turn = batch.groups[row.problem].rollouts[row.attempt].turns[row.turn]
    old = _old(rehearsal, variant, update, number, np.array(turn.logprobs), np.array(turn.behaviour_logprobs))
    advantage = np.full(t, worth.values[row.attempt])
    if worth.tokens is not None:
        before = sum(len(r.completion_ids) for r in rehearsal.rows if _earlier(r.problem, r.attempt, r.turn, row))
        advantage = worth.tokens[row.attempt][before : before + t]
    micro = update.passes[number][0].micro if number in update.passes else -1
    return Answer(
        row.task,
        row.problem,
        row.attempt,
        row.turn,
        row.turns,
        row.truncated,
        micro,
        max((len(p[0].logp) for p in update.passes.values() if p[0].micro == micro), default=t),
        advantage,
        worth.balance,
        learns.get(number, np.ones(t)),
        new,
        old,
        np.array(turn.behaviour_logprobs),
        batch.told[number][0] if number in batch.told else new,
    )


def _old(
    rehearsal: Rehearsal, variant: Variant, update: Update, number: int, sampled: Floats, behaviour: Floats
) -> Floats:
    """The old log-probabilities of a completion.

    The old policy is the one that the batch's updates begin with, unless older weights sampled and nothing corrects it.
    """
    new, scored = _whole(update, number, rehearsal), rehearsal.batches[update.batch].scored
    own = update.batch == 0 or variant.settings.grpo.loss.importance is not None
    right = sampled
    if own and update.index == 0:
        return new
    if own and needs_recompute(variant.settings) and number in scored:
        right = scored[number][0]
    if variant.old == "previous":
        before = [u for u in rehearsal.updates if u.batch == update.batch and u.index < update.index]
        return next((_whole(u, number, rehearsal) for u in reversed(before) if number in u.passes), right)
    others = {"new": new, "sampled": sampled, "behaviour": behaviour, "scored": scored.get(number, (right,))[0]}
    return others.get(variant.old, right)


def _earlier(problem: int, attempt: int, turn: int, row: object) -> bool:
    own = (getattr(row, "problem", 0), getattr(row, "attempt", 0))
    return (problem, attempt) == own and turn < getattr(row, "turn", 0)


def _whole(update: Update, number: int, rehearsal: Rehearsal, *, entropy: bool = False) -> Floats:
    """What the policy said of a completion; zeros where it was not computed."""
    passes = update.passes.get(number)
    if not passes:
        return np.zeros(len(rehearsal.rows[number].completion_ids))
    return passes[0].entropy if entropy else passes[0].logp


def _slopes(book: Book, answers: Sequence[Answer], doubts: Sequence[Floats], *, apart: bool) -> list[Slopes]:
    made = book.slopes(answers, doubts)
    if not apart:
        return made
    present = {a.task for a in answers}
    live = {a.problem for a in answers if bool((np.abs(a.advantage) > 0).any())}
    for micro in {a.micro for a in answers}:
        members = [i for i, a in enumerate(answers) if a.micro == micro and a.problem in live]
        parts = book.slopes([answers[i] for i in members], [doubts[i] for i in members], present)
        for i, part in zip(members, parts, strict=True):
            made[i] = replace(made[i], policy=part.policy, other=part.other)
    return made


def _scaled(slopes: Slopes, factor: float) -> Slopes:
    if factor == 1.0:
        return slopes
    parts = {name: getattr(slopes, name) * factor for name in ("policy", "kl", "entropy", "other")}
    return replace(slopes, **parts)


def _told(update: Update, answer: Answer, want: Slopes, row: int) -> Told:
    passes = update.passes.get(row, [])
    none = np.zeros(answer.length)
    actual = sum((p.slope for p in passes), none)
    return Told(answer, want, want.policy.copy(), actual, sum((p.entropy_slope for p in passes), none), row)


def _choose(told: Sequence[Told]) -> None:
    """Take the trainer's word for which tokens a loss by covariance treats otherwise, if their number is right."""
    for micro in {t.answer.micro for t in told}:
        members = [t for t in told if t.answer.micro == micro]
        special = max((t.want.special for t in members), default=0)
        special_masks = []
        for t in members:
            policy_slope = t.actual - t.want.kl
            closer = np.abs(policy_slope - t.want.other) < np.abs(policy_slope - t.want.policy)
            special_masks.append(t.want.optional & closer)
        # Some are treated otherwise without a trace: a token whose two slopes are equal.
        traceless = sum(int((t.want.optional & (t.want.other == t.want.policy)).sum()) for t in members)
        count = sum(int(c.sum()) for c in special_masks)
        if count <= special <= count + traceless:
            for t, c in zip(members, special_masks, strict=True):
                t.policy = np.where(c, t.want.other, t.want.policy)


def changed(settings: Settings, section: str = "", **values: object) -> Settings:
    """Return settings with keys of ``grpo``, or of one of its sections, changed."""
    grpo = settings.grpo
    update = {section: getattr(grpo, section).model_copy(update=values)} if section else values
    return replace(settings, grpo=grpo.model_copy(update=update))
