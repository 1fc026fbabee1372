"""Do answers depend on prompts?  How alike the answers of a batch are, and whether all prompts get one and the same.

A batch is a list of groups, a group the answers (as texts) to one prompt.  Guard and doctor both go by these measures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from levelhead import metrics as metric
from levelhead.diagnosis import stats

Groups = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Likeness:
    """How alike the answers of a batch are.

    Attributes:
        top: The batch's most common answer.
        top_share: Share of the prompts whose most common answer it is, in (0, 1].
        distinct: Different answers of the batch, divided by its prompts: 1 over the prompts where all are the same.
        entropy: Entropy of the answers over the batch, in nats: 0 where all are the same.
        information: What answers tell of prompts, in nats; ``None`` where the batch cannot say.
    """

    top: str
    top_share: float
    distinct: float
    entropy: float
    information: float | None


def likeness(groups: Groups) -> Likeness | None:
    """Measure a batch; ``None`` for fewer than two prompts with answers, where there is nothing to compare.

    Of several answers that are equally common in the batch, the one that is most common for most prompts is taken, and
    the first in the alphabet of these.
    """
    counts = [Counter(group) for group in groups if group]
    if len(counts) < 2:
        return None
    total: Counter[str] = Counter()
    modes: Counter[str] = Counter()
    for count in counts:
        total.update(count)
        most = max(count.values())
        modes.update(answer for answer, n in count.items() if n == most)
    top = min(total, key=lambda answer: (-total[answer], -modes[answer], answer))
    share, distinct = modes[top] / len(counts), len(total) / len(counts)
    return Likeness(top, share, distinct, entropy(total.values()), information(groups))


def information(groups: Groups) -> float | None:
    """Estimate the mutual information of prompt and answer, in nats.

    The plain estimate is the entropy of the answers over the batch less their mean entropy within groups (weighted by
    size).  It is above 0 by chance alone, the more the smaller the groups.  What chance gives is known exactly: the
    expectation over all ways of dealing the batch's answers out to its groups (:func:`expected_by_chance`).  With it
    the estimate is corrected as Vinh, Epps and Bailey (2010, JMLR 11, "Information theoretic measures for clusterings
    comparison") correct theirs, 0 at chance and the whole entropy where every prompt has an answer of its own::

        I = H (M - E) / (H - E)      H: entropy over the batch, M: plain estimate, E: its expectation by chance

    For a policy whose answers do not depend on the prompt its expectation is exactly 0, so that single batches may lie
    below.

    Args:
        groups: Answers by prompt; groups may differ in size.

    Returns:
        Nats, at most the entropy of the answers; 0 where all answers are the same.  ``None`` where no two answers of
        the batch are equal, or no prompt has two: chance explains then whatever is seen.
    """
    counts = [Counter(group) for group in groups if group]
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    if len(total) == 1:
        return 0.0
    n = total.total()
    if len(total) == n or all(count.total() == 1 for count in counts):
        return None
    whole = entropy(total.values())
    within = math.fsum(count.total() / n * entropy(count.values()) for count in counts)
    chance = expected_by_chance([count.total() for count in counts], list(total.values()))
    if whole - chance < 1e-12:
        return None
    return whole * (whole - within - chance) / (whole - chance)


def entropy(counts: Iterable[int]) -> float:
    """Entropy of a distribution given by counts, in nats, uncorrected: sum of -p log p."""
    numbers = [count for count in counts if count]
    n = sum(numbers)
    return math.log(n) - math.fsum(count * math.log(count) for count in numbers) / n if n else 0.0


def expected_by_chance(sizes: Sequence[int], counts: Sequence[int]) -> float:
    """Mean plain estimate of the mutual information over all ways of dealing answers out to groups, in nats.

    Equation 24 of Vinh, Epps and Bailey (2010): each cell of the table of groups and answers is hypergeometric.

    Args:
        sizes: Answers in each group.
        counts: How often each different answer occurs; sums to what ``sizes`` sums to.
    """
    n = sum(sizes)
    cells = [
        repeats * times * _cell(size, count, n)
        for size, repeats in Counter(sizes).items()
        for count, times in Counter(counts).items()
    ]
    return math.fsum(cells)


def _cell(size: int, count: int, n: int) -> float:
    """Expected contribution of a group of ``size`` and an answer that occurs ``count`` times among ``n``."""
    log_fixed = _log_choose(n, size)
    return math.fsum(
        both / n * math.log(n * both / (size * count))
        * math.exp(_log_choose(count, both) + _log_choose(n - count, size - both) - log_fixed)
        for both in range(max(1, size + count - n), min(size, count) + 1)
    )  # fmt: skip


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def alike(meanings: Groups, wordings: Groups) -> Likeness | None:
    """Measure a batch by what its answers mean, or by their wording where that repeats itself even more.

    A policy that always writes the same letter says something else each time where options are shuffled, and still
    does not read.
    """
    by_meaning, by_wording = likeness(meanings), likeness(wordings)
    if by_meaning is None or by_wording is None or by_wording.top_share <= by_meaning.top_share:
        return by_meaning
    return by_wording


def over_forms(parts: Sequence[tuple[int, Likeness]]) -> Likeness | None:
    """Combine batches of one form of prompt each: every gauge is the mean over forms, weighted by their prompts.

    Of the information this is what answers tell of prompts beyond their form (the conditional mutual information given
    the form), over the forms that can say.

    Args:
        parts: Prompts and likeness of each form.
    """
    if len(parts) < 2:
        return parts[0][1] if parts else None
    weights = [n for n, _ in parts]
    measured = [(n, part.information) for n, part in parts if part.information is not None]
    return Likeness(
        max(parts, key=lambda part: part[0])[1].top,
        fmean([part.top_share for _, part in parts], weights),
        fmean([part.distinct for _, part in parts], weights),
        fmean([part.entropy for _, part in parts], weights),
        fmean([information for _, information in measured], [n for n, _ in measured]) if measured else None,
    )


def metrics(task: str, answers: Likeness | None, perfect: Likeness | None) -> Mapping[str, float]:
    """Name what was measured of a task's answers, and of perfect answers to the same prompts where those are known."""
    if answers is None:
        return {}
    values = {
        metric.TOP_SHARE.of(task): answers.top_share,
        metric.DISTINCT.of(task): answers.distinct,
        metric.ANSWER_ENTROPY.of(task): answers.entropy,
    }
    if answers.information is not None:
        values[metric.INFORMATION.of(task)] = answers.information
    if perfect is not None:
        values[metric.PERFECT_SHARE.of(task)] = perfect.top_share
    return values


PREFIX = metric.TOP_SHARE.prefix
"""Metrics of this prefix name the tasks whose answers are measured."""
GAUGES = {
    "top_share": metric.TOP_SHARE,
    "entropy": metric.ANSWER_ENTROPY,
    "information": metric.INFORMATION,
    "perfect_share": metric.PERFECT_SHARE,
    "validity": metric.VALIDITY_BY_TASK,
    "reward": metric.REWARD_BY_TASK,
}
"""What is read of a task: of its answers (:mod:`levelhead.diagnosis.sameness`), and beside them."""

FEW_STEPS, MANY_STEPS = 1, 4
"""Steps that can say something, up to which nothing is said and from which everything is."""
TOLD = 0.15
"""Nats from which answers are said to tell something of their prompts."""

# Set by hand on the development logs (docs/doctor.md), unless a line says otherwise.
# Weights are log-odds; a range begins where nothing counts and ends where all does.
_SHARE_RANGE = (0.85, 0.97)  # share of prompts with the same answer
_ENTROPY_RANGE = (0.5, 0.25)  # nats of the answers of a batch
_INFORMATION_RANGE = (0.15, 0.05)  # nats that they tell of the prompts
_VALID_RANGE = (0.05, 0.3)  # share of answers that parse
_PERFECT_RANGE = (0.05, 0.15)  # share beyond that of perfect answers
_TOLD_STEPS = 4  # steps before answers have told something
_TOLD_ERRORS = 4  # standard errors that it must lie above 0
_ONE = 1.0001  # largest reward in [0, 1], rounding included
_NEAR_TOP = (0.8, 0.95)  # mean reward that says that the one answer is right


@dataclass(frozen=True, slots=True)
class Sameness:
    """A task's answers over some steps.

    Attributes:
        task: Its name.
        share: Mean share of the prompts that get the batch's most common answer.
        entropy: Mean entropy of the answers of a batch, nats.
        information: Mean of what they tell of the prompts, nats; 0 where it could not be told.
        perfect: Mean share that perfect answers to the same prompts would have; ``None`` where nobody knows them.
        strength: 0 to 1: how surely one answer is given to all prompts that do not all have the same right one.
    """

    task: str
    share: float
    entropy: float
    information: float
    perfect: float | None
    strength: float


def names(task: str) -> dict[str, str]:
    """Metric name of each gauge of a task."""
    return {gauge: family.of(task) for gauge, family in GAUGES.items()}


def judge(task: str, readings: Mapping[str, Sequence[float]]) -> Sameness | None:
    """Judge a task by its readings over some steps; ``None`` without any.

    Alike are answers of which nearly all prompts get the same, of which the batch holds hardly another, and which tell
    next to nothing of the prompt: a policy that draws from one wide distribution whatever is asked has not settled
    on an answer.  No fault is what also holds of perfect answers: a batch of prompts that all have the same right
    answer says nothing, and of those that can say something it takes a few.  Where nobody knows perfect answers, a
    reward close to 1 among rewards in [0, 1] tells that the one answer is right.  Answers that hardly ever parse are
    no answers.

    Args:
        task: Its name.
        readings: By gauge, as :func:`names` has them; absent ones are empty.
    """
    if not readings.get("top_share"):
        return None
    readings, steps = _telling(readings)
    share, entropy = stats.mean(readings["top_share"]), stats.mean(readings.get("entropy", ()))
    information = stats.mean(readings.get("information", ()))
    perfect_shares = readings.get("perfect_share", ())
    perfect = stats.mean(perfect_shares) if perfect_shares else None
    strength = (
        stats.ramp(share, *_SHARE_RANGE)
        * stats.ramp(entropy, *_ENTROPY_RANGE)
        * stats.ramp(information, *_INFORMATION_RANGE)
    )
    if readings.get("validity"):
        strength *= stats.ramp(stats.mean(readings["validity"]), *_VALID_RANGE)
    strength *= (
        1 - _near_top(readings.get("reward", ())) if perfect is None else stats.ramp(share - perfect, *_PERFECT_RANGE)
    )
    return Sameness(task, share, entropy, information, perfect, strength * stats.ramp(steps, FEW_STEPS, MANY_STEPS))


def _telling(readings: Mapping[str, Sequence[float]]) -> tuple[Mapping[str, Sequence[float]], int]:
    """The readings of steps whose perfect answers are not all alike, and how many steps these are.

    All of them where no step is such a one, or perfect answers are not known throughout.
    """
    share, perfect = readings["top_share"], readings.get("perfect_share", ())
    if len(share) != len(perfect):
        return readings, len(share)
    telling = [i for i, value in enumerate(perfect) if value < 1]
    if not telling:
        return readings, 0
    telling_readings = {
        name: [row[i] for i in telling] if len(row) == len(share) else row for name, row in readings.items()
    }
    return telling_readings, len(telling)


def tells(informations: Sequence[float]) -> bool:
    """Whether answers tell anything of their prompts: 0.15 nats on average of four steps or more, beyond chance."""
    mean, n = stats.mean(informations), len(informations)
    return n >= _TOLD_STEPS and mean >= TOLD and mean > _TOLD_ERRORS * stats.spread(informations) / math.sqrt(n)


def stands_still(rewards: Sequence[float]) -> bool:
    """Whether the second half of the rewards is above the first by no more than two standard errors."""
    half = len(rewards) // 2
    if half < 2:
        return False
    gain = stats.mean(rewards[-half:]) - stats.mean(rewards[:-half])
    return gain <= 2 * stats.noise(rewards) * math.sqrt(2 / half) + 1e-9


def _near_top(rewards: Sequence[float]) -> float:
    if not rewards or min(rewards) < 0 or max(rewards) > _ONE:
        return 0.0
    return stats.ramp(stats.mean(rewards), *_NEAR_TOP)
