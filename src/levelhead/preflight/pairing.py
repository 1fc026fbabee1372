"""Whether answers belong to their prompts: neighbouring rows whose answers are held against each other's prompts."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from levelhead.preflight.check import LEVEL
from levelhead.preflight.context import Context
from levelhead.records import Prompt
from levelhead.rollout.draws import generator
from levelhead.tasks.base import SingleTurnTask
from levelhead.training.fit import BELONG, Floats, permutation_fit

ROWS = 64
"""Neighbouring training rows whose answers are held against each other's prompts."""
LOOKED_AT = 20_000
"""Training rows that are put in order; of a task with more, rows seldom have their neighbours among them."""
BLOCKS = 2
"""Stretches of the data that they are taken from."""
LAGS = (1, -1, 2, -2)
"""Rows by which answers may be out of step."""
_WORD = re.compile(r"\w+")
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Rows:
    """Neighbours in the order of the data.

    Attributes:
        prompts: One a row.
        answers: Their perfect answers.
        blocks: Where each stretch begins.
    """

    prompts: list[Prompt]
    answers: list[str]
    blocks: tuple[int, ...] = (0,)

    def first(self, n: int) -> Rows:
        """Return the first n rows."""
        return Rows(self.prompts[:n], self.answers[:n], tuple(block for block in self.blocks if block < n))

    @property
    def shown(self) -> list[dict[str, str]]:
        """The beginning of a few rows, for a person to look at."""
        last = [prompt.texts[-1][-80:] for prompt in self.prompts[:3]]
        return [{"prompt": a, "answer": b[:80]} for a, b in zip(last, self.answers, strict=False)]

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """Where all rows, and each stretch of several, begin and end."""
        edges = [*self.blocks, len(self.prompts)]
        return list(dict.fromkeys([(0, len(self.prompts)), *itertools.pairwise(edges)]))

    def lagged(self, lag: int) -> list[tuple[int, int]]:
        """Return (prompt, answer) pairs of rows so far apart, within a stretch."""
        edges = [*self.blocks, len(self.prompts)]
        return [(i, i + lag) for a, b in itertools.pairwise(edges) for i in range(a, b) if a <= i + lag < b]


def neighbours(context: Context, name: str, task: SingleTurnTask) -> Rows:
    """Return stretches of training rows that have perfect answers, in the order of their ids."""
    some = itertools.islice(task.prompts("train", 0), LOOKED_AT)
    ordered = sorted(some, key=lambda prompt: natural(prompt.id))
    part = len(ordered) // BLOCKS
    size = min(ROWS // BLOCKS, part)
    rng = generator(context.seed, "neighbours", name)
    prompts: list[Prompt] = []
    answers: list[str] = []
    blocks: list[int] = []
    for block in range(BLOCKS):
        start = block * part + int(rng.integers(part - size + 1))
        blocks.append(len(prompts))
        for prompt in ordered[start : start + size]:
            if perfect := task.oracle(prompt):
                prompts.append(prompt)
                answers.append(perfect[0])
    return Rows(prompts, answers, tuple(blocks))


def natural(identifier: str) -> list[Any]:
    """Return a key by which row-9 stands before row-10."""
    return [int(part) if i % 2 else part for i, part in enumerate(_DIGITS.split(identifier))]


@dataclass(frozen=True, slots=True)
class Pairing:
    """What a matrix of fits shows.

    Attributes:
        key: ``belong``, ``unknown``, ``out-of-step`` or ``shuffled``.
        fields: Of the message.
        evidence: Its numbers.
    """

    key: str
    fields: dict[str, Any]
    evidence: dict[str, Any] = field(default_factory=dict)


def judge(fit_nn: Floats, rows: Rows, seed: int, level: float) -> Pairing:
    """Judge how well answer j fits prompt i, (n, n): its own, one so many rows off, some other one, or none.

    Another pairing is looked for in two ways: one lag for all rows of a stretch, or of all stretches, by which answers
    fit best more than twice as often as by no lag; and, where answers fit their own prompts no better than chance, any
    pairing by which the answers that fit best are nearly all different.

    Args:
        fit_nn: The fits.
        rows: What they are of.
        seed: Of the permutations.
        level: p-value below which another pairing is no accident.
    """
    own = permutation_fit(fit_nn, generator(seed, "pairs"))
    n = len(fit_nn)
    evidence: dict[str, Any] = {
        "rows": n,
        "own": own.own,
        "others": own.others,
        "p_value": own.p,
        "rows_shown": rows.shown,
    }
    best = {int(i): int(fit_nn[i].argmax()) for i in range(n) if _unique(fit_nn[i])}
    best = {i: j for i, j in best.items() if i == j or _astray(fit_nn, i, j)}
    for (start, end), lag in itertools.product(rows.stretches, LAGS):
        pairs = [(i, j) for i, j in rows.lagged(lag) if start <= i < end]
        matches, right = sum(best.get(i) == j for i, j in pairs), sum(best.get(i) == i for i, _ in pairs)
        p = min(1.0, len(LAGS) * len(rows.stretches) * matches_p(matches))
        if p < level and matches > max(2 * right, len(pairs) // 2):
            fields = {"lag": lag, "matches": matches, "of": len(pairs), "own": right, "p": p}
            return Pairing("out-of-step", fields, evidence)
    if own.p <= BELONG:
        return Pairing("belong", {"n": n, "p": own.p}, evidence)
    others = [j for i, j in best.items() if i != j]
    p = spread_p(len(set(others)), len(others), n) if others else 1.0
    if p >= level:
        return Pairing("unknown", {"n": n, "p": own.p}, evidence)
    return Pairing("shuffled", {"others": len(others), "n": n, "p": p, "own": own.p}, evidence)


def level_of(context: Context) -> float:
    """p-value below which another pairing of one task is no accident; all tasks share it."""
    return LEVEL / len(context.setup.tasks)


def matches_p(matches: int) -> float:
    """Return a bound on the chance that so many of n things meet their partner in a random pairing: 1 / matches!.

    The expected number of k-sets that all meet their partner is at most C(n, k) (n - k)! / n! = 1 / k!, whatever the
    partners are, and no fewer k-sets meet than one where k do.
    """
    return 1.0 / math.factorial(min(matches, 150))


def spread_p(different: int, throws: int, n: int) -> float:
    """Return the chance that throws into n boxes hit at least ``different`` boxes, every box being as likely."""
    chance = [1.0] + [0.0] * n
    for _ in range(throws):
        chance = [
            (chance[k] * k / n if k else 0.0) + (chance[k - 1] * (n - k + 1) / n if k else 0.0) for k in range(n + 1)
        ]
    return min(1.0, math.fsum(chance[different:]))


def _unique(row: Floats) -> bool:
    """Whether one entry of a row stands above all others."""
    two = np.partition(row, -2)[-2:]
    return bool(two[1] > two[0] + 1e-9)


def _astray(fit_nn: Floats, i: int, j: int) -> bool:
    """Whether answer j, above what it fits any prompt, fits prompt i at least twice as well as its own.

    Rows that share a passage fit each other's prompts about as well as their own: that is no sign of a wrong order.
    """
    usual = float(np.delete(fit_nn[:, j], [i, j]).mean()) if len(fit_nn) > 2 else 0.0
    return bool(fit_nn[j, j] - usual <= 0.5 * (fit_nn[i, j] - usual))


def alike(rows: Rows) -> bool:
    """Whether one answer is right for all prompts, or nearly: then nothing can be out of step."""
    most = Counter(" ".join(answer.casefold().split()) for answer in rows.answers).most_common(1)[0][1]
    return 2 * most > len(rows.answers)


def word_fits(prompts: Sequence[Prompt], answers: Sequence[str]) -> Floats:
    """Return how well answer j fits prompt i by the words that they share, (n, n).

    Words weigh by how rare they are among the prompts and among the answers (inverse document frequency, Sparck Jones
    1972).  A prompt that quotes another prompt continues it, and says nothing of whose answer is whose.
    """
    texts = [" ".join(prompt.texts) for prompt in prompts]
    asked = [prompt.texts[-1] for prompt in prompts]
    asked_words = [Counter(dict.fromkeys(_WORD.findall(text.casefold()), 1)) for text in texts]
    answer_words = [Counter(dict.fromkeys(_WORD.findall(text.casefold()), 1)) for text in answers]
    in_prompts, in_answers = sum(asked_words, Counter()), sum(answer_words, Counter())
    n = len(prompts)
    weight = {
        word: math.log(n / in_prompts[word]) * math.log((n + 1) / in_answers[word])
        for word in in_prompts.keys() & in_answers.keys()
    }
    fit_nn = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if i != j and asked[j] and asked[j] != asked[i] and asked[j] in texts[i]:
                continue
            fit_nn[i, j] = math.fsum(weight[word] for word in answer_words[j].keys() & asked_words[i].keys())
    return fit_nn / np.maximum(np.sqrt([len(words) or 1 for words in answer_words]), 1.0)[None, :]
