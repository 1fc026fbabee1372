"""Do answers depend on prompts?  How alike the answers of a batch are, and what they tell of the prompts.

A batch is a list of groups, a group the answers (as texts) to one prompt.  Everything is a pure function of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from levelhead import metrics as metric

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
    told = [(n, part.information) for n, part in parts if part.information is not None]
    return Likeness(
        max(parts, key=lambda part: part[0])[1].top,
        _weighted([part.top_share for _, part in parts], weights),
        _weighted([part.distinct for _, part in parts], weights),
        _weighted([part.entropy for _, part in parts], weights),
        _weighted([information for _, information in told], [n for n, _ in told]) if told else None,
    )


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    return math.fsum(v * w for v, w in zip(values, weights, strict=True)) / math.fsum(weights)


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
