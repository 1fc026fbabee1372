"""Pairs: prompts and answers belong together, in rollouts, in demonstrations and in the data themselves."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from levelhead.errors import InputError, RewardError
from levelhead.preflight.chance import LEVEL, matches_p, spread_p
from levelhead.preflight.context import PreflightContext
from levelhead.preflight.result import Check, judged
from levelhead.preflight.tokens import demonstrations
from levelhead.records import Prompt
from levelhead.rollout.draws import derive, generator
from levelhead.tasks.base import Answer, SingleTurnTask
from levelhead.training.fit import BELONG, Floats, likelihoods, permutation_fit

ROWS = 64
"""Neighbouring training rows whose answers are held against each other's prompts."""
LOOKED_AT = 20_000
"""Training rows that are put in order; of a task with more, rows seldom have their neighbours among them."""
BLOCKS = 2
"""Stretches of the data that they are taken from."""
FEW = 12
"""Rows that the policy itself is asked about."""
PATIENCE_S = 0.1
"""Seconds that scoring answers under other prompts may take, by the time that one row takes."""
DOUBT_S = 6.0
"""The same where they do not score more under their own."""
LEAST = 20
"""Rows that are scored at least, where that takes no more than ``DOUBT_S``."""
AFFORDED_S = 3.0
"""Seconds of training that as many tokens may take as the policy is asked about."""
LAGS = (1, -1, 2, -2)
"""Rows by which answers may be out of step."""
_WORD = re.compile(r"\w+")
_DIGITS = re.compile(r"(\d+)")


def check_pairs(context: PreflightContext) -> Iterator[Check]:
    """Look at pairs of prompt and answer wherever a run makes some."""
    if context.grpo is not None:
        yield _rollouts(context)
    if context.recipe.sft is not None:
        yield _demonstrations(context)
    for name, task in context.setup.tasks.items():
        if task.demonstrates or not isinstance(task, SingleTurnTask):
            continue
        rows = _neighbours(context, name, task)
        if len(rows.prompts) < 2:
            continue
        try:
            yield _scores(context, name, task, rows)
        except RewardError as error:
            yield Check(f"pairs/scores/{name}", "fail", str(error).splitlines()[0], {}, "mend the reward")
        yield _texts(context, name, rows)


def _rollouts(context: PreflightContext) -> Check:
    """A rollout has read its own prompt, and belongs to the group of that prompt."""
    wrong, compared = None, 0
    for group in context.drawn.groups:
        if not isinstance(context.setup.tasks[group.prompt.task], SingleTurnTask):
            continue
        wanted = context.codec.render(group.prompt.messages)
        for rollout in group.rollouts:
            compared += 1
            if rollout.prompt_id != group.prompt.id and wrong is None:
                wrong = f"a rollout of prompt {rollout.prompt_id!r} is in the group of {group.prompt.id!r}"
            elif tuple(rollout.turns[0].context_ids) != tuple(wanted) and wrong is None:
                wrong = f"a rollout in the group of prompt {group.prompt.id!r} has read another prompt"
    right = f"{compared} rollouts have read the prompt of their group" if compared else "no single-turn rollouts"
    fix = "order completions prompt by prompt, k of each, as prompts are ordered"
    return judged("pairs/rollouts", wrong, right, {"rollouts": compared}, fix)


def _demonstrations(context: PreflightContext) -> Check:
    """In a batch of demonstrations each holds the perfect answer to its own prompt."""
    tasks = context.setup.tasks
    prompts = [
        prompt
        for name, task in tasks.items()
        if isinstance(task, SingleTurnTask) and not task.demonstrates
        for prompt in itertools.islice(task.prompts("train", derive(context.seed, "demonstrations", name)), 6)
        if task.oracle(prompt)
    ]
    check, fix = "pairs/demonstrations", "pair each prompt with its own answer, whatever the order of the batch"
    try:
        pairs = demonstrations(context, prompts)
    except InputError as error:
        return Check(check, "fail", str(error), {}, fix)
    perfect = ["".join((tasks[prompt.task].oracle(prompt) or [""])[0].split()) for prompt in prompts]
    wrong = None
    if len(pairs) != len(prompts):
        wrong = f"{len(prompts)} prompts have {len(pairs)} demonstrations"
    off = 0
    for i, (prompt, pair) in enumerate(zip(prompts, pairs, strict=False)):
        text = "".join(context.codec.decode(pair.completion_ids).split())
        if perfect[i] in text and tuple(pair.context_ids) == tuple(context.codec.render(prompt.messages)):
            continue
        off += 1
        whose = next((prompts[j].id for j, other in enumerate(perfect) if other and other in text and j != i), None)
        what = f"the answer to {whose!r}" if whose and perfect[i] not in text else "another prompt or answer"
        wrong = wrong or f"the demonstration for prompt {prompt.id!r} holds {what}"
    evidence = {"demonstrations": len(pairs), "out_of_step": off}
    right = f"{len(pairs)} demonstrations hold the perfect answers to their prompts"
    return judged(check, wrong, right if pairs else "no single answers to compare", evidence, fix)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Neighbours in the order of the data.

    Attributes:
        prompts: One a row.
        answers: Their perfect answers.
        blocks: Where each stretch begins.
    """

    prompts: list[Prompt]
    answers: list[str]
    blocks: tuple[int, ...] = (0,)

    def first(self, n: int) -> _Rows:
        """Return the first n rows."""
        return _Rows(self.prompts[:n], self.answers[:n], tuple(block for block in self.blocks if block < n))

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """Where all rows, and each stretch of several, begin and end."""
        edges = [*self.blocks, len(self.prompts)]
        return list(dict.fromkeys([(0, len(self.prompts)), *itertools.pairwise(edges)]))

    def lagged(self, lag: int) -> list[tuple[int, int]]:
        """Return (prompt, answer) pairs of rows so far apart, within a stretch."""
        edges = [*self.blocks, len(self.prompts)]
        return [(i, i + lag) for a, b in itertools.pairwise(edges) for i in range(a, b) if a <= i + lag < b]


def _neighbours(context: PreflightContext, name: str, task: SingleTurnTask) -> _Rows:
    """Return stretches of training rows that have perfect answers, in the order of their ids."""
    some = itertools.islice(task.prompts("train", 0), LOOKED_AT)
    ordered = sorted(some, key=lambda prompt: _natural(prompt.id))
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
    return _Rows(prompts, answers, tuple(blocks))


def _natural(identifier: str) -> list[Any]:
    """Return a key by which row-9 stands before row-10."""
    return [int(part) if i % 2 else part for i, part in enumerate(_DIGITS.split(identifier))]


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What a matrix of fits says.

    Attributes:
        wrong: That answers fit other prompts than their own; ``None`` where they do not, or nothing can be told.
        evidence: Its numbers.
        belongs: Whether answers fit their own prompts better than others', beyond chance.
    """

    wrong: str | None
    evidence: dict[str, Any]
    belongs: bool


def judge(fit_nn: Floats, rows: _Rows, seed: int, level: float) -> _Verdict:
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
    evidence: dict[str, Any] = {"rows": n, "own": own.own, "others": own.others, "p_value": own.p}
    best = {int(i): int(fit_nn[i].argmax()) for i in range(n) if _unique(fit_nn[i])}
    best = {i: j for i, j in best.items() if i == j or _astray(fit_nn, i, j)}
    stretches = rows.stretches
    for (start, end), lag in itertools.product(stretches, LAGS):
        pairs = [(i, j) for i, j in rows.lagged(lag) if start <= i < end]
        matches, right = sum(best.get(i) == j for i, j in pairs), sum(best.get(i) == i for i, _ in pairs)
        p = min(1.0, len(LAGS) * len(stretches) * matches_p(matches))
        if p < level and matches > max(2 * right, len(pairs) // 2):
            evidence |= {"lag": lag, "matches": matches, "of": len(pairs), "p_value_of_lag": p}
            side = "after" if lag > 0 else "before"
            wrong = (
                f"the answers that fit best stand {abs(lag)} row{'s' * (abs(lag) > 1)} {side} their prompts ({matches} "
                f"of {len(pairs)}, p = {p:.1g}) and {right} of {len(pairs)} in their own: rows are out of step"
            )
            return _Verdict(wrong, evidence, belongs=False)
    if own.p <= BELONG:
        return _Verdict(None, evidence, belongs=True)
    others = [j for i, j in best.items() if i != j]
    p = spread_p(len(set(others)), len(others), n) if others else 1.0
    evidence |= {"fit_another_best": len(others), "different": len(set(others)), "p_value_of_any": p}
    if p >= level:
        return _Verdict(None, evidence, belongs=False)
    wrong = (
        f"{len(others)} of {n} prompts have the answer that fits them best in another row, nearly each in one of its "
        f"own (p = {p:.1g}), and their own fits no better than any (p = {own.p:.2g}): rows are shuffled"
    )
    return _Verdict(wrong, evidence, belongs=False)


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


def _alike(rows: _Rows) -> bool:
    """Whether one answer is right for all prompts, or nearly: then nothing can be out of step."""
    most = Counter(" ".join(answer.casefold().split()) for answer in rows.answers).most_common(1)[0][1]
    return 2 * most > len(rows.answers)


_FIX = "look at the rows of the evidence: sort or join prompts and answers by key, and drop no line of one file alone"


def _scores(context: PreflightContext, name: str, task: SingleTurnTask, rows: _Rows) -> Check:
    """Perfect answers score more under their own prompt than under others'."""
    check, rules = f"pairs/scores/{name}", task.rules
    if rules is None:
        return Check(check, "pass", "a score costs calls elsewhere, so answers are not scored under other prompts")
    if _alike(rows):
        return Check(check, "pass", "most prompts have the same perfect answer")
    codec, n = context.collector(), len(rows.prompts)
    tokens = [codec.completion_ids(prompt, text) for prompt, text in zip(rows.prompts, rows.answers, strict=True)]

    def scored(size: int, some: Sequence[int]) -> Floats:
        answers = [Answer(rows.prompts[i], rows.answers[j], tokens[j]) for i in some for j in range(size)]
        scores = context.loop.run(rules.score_batch(answers))
        totals = [math.nan if score is None else score.total for score in scores]
        return np.array(totals, dtype=np.float64).reshape(len(some), size)

    scored(n, [0])  # whatever is only slow at first
    start = time.perf_counter()
    scored(n, [n - 1])
    each = (time.perf_counter() - start) / n
    size = min(n, max(LEAST, math.isqrt(int(PATIENCE_S / max(each, 1e-7)))))
    if each * size**2 > DOUBT_S:
        return Check(check, "pass", "rewards are too slow to score answers under other prompts")
    few = rows.first(size)
    fit_nn = scored(size, range(size))
    if np.isnan(fit_nn).any() or np.ptp(fit_nn) == 0:
        return Check(check, "pass", "rewards tell nothing of the pairing", {"rows": size})
    verdict = judge(fit_nn, few, context.seed, _level(context))
    if not verdict.belongs and verdict.wrong is None and size < n and each * n**2 <= DOUBT_S:
        verdict = judge(np.nan_to_num(scored(n, range(n)), nan=-1e9), rows, context.seed, _level(context))
    return _told(check, verdict, "score", _shown(rows))


def _level(context: PreflightContext) -> float:
    return LEVEL / len(context.setup.tasks)


def _shown(rows: _Rows) -> list[dict[str, str]]:
    """Return the beginning of a few rows, for a person to look at."""
    last = [str(prompt.messages[-1].get("content", ""))[-80:] for prompt in rows.prompts[:3]]
    return [{"prompt": a, "answer": b[:80]} for a, b in zip(last, rows.answers, strict=False)]


def _told(check: str, verdict: _Verdict, by: str, shown: list[dict[str, str]]) -> Check:
    evidence = verdict.evidence | {"by": by}
    if verdict.wrong is not None:
        return Check(check, "fail", f"by {by}, {verdict.wrong}", evidence | {"rows_shown": shown}, _FIX)
    p, n = verdict.evidence["p_value"], verdict.evidence["rows"]
    if verdict.belongs:
        right = f"by {by}, {n} answers fit their own prompts better than others' (p = {p:.1g})"
    else:
        right = f"by {by}, nothing tells whether {n} answers belong to their prompts (p = {p:.2g})"
    return Check(check, "pass", right, evidence)


def _texts(context: PreflightContext, name: str, rows: _Rows) -> Check:
    """Perfect answers share rare words with their own prompts, or are likelier there to a trained policy."""
    check = f"pairs/text/{name}"
    if _alike(rows):
        return Check(check, "pass", "most prompts have the same perfect answer")
    verdict = judge(word_fits(rows.prompts, rows.answers), rows, context.seed, _level(context))
    if verdict.belongs or verdict.wrong is not None or context.recipe.model.preset == "tiny":
        return _told(check, verdict, "the words they share", _shown(rows))
    few = rows.first(FEW)
    drawn = sum(len(turn.context_ids + turn.completion_ids) for turn in context.turns)
    asked = sum(len(context.collector().render(prompt).token_ids) for prompt in few.prompts) * len(few.prompts)
    if (context.train_seconds or math.inf) * asked / max(drawn, 1) > AFFORDED_S:
        return _told(check, verdict, "the words they share", _shown(rows))
    fit_nn = likelihoods(context.policy, few.prompts, few.answers)
    return _told(check, judge(fit_nn, few, context.seed, _level(context)), "the policy's likelihood", _shown(rows))


def word_fits(prompts: Sequence[Prompt], answers: Sequence[str]) -> Floats:
    """Return how well answer j fits prompt i by the words that they share, (n, n).

    Words weigh by how rare they are among the prompts and among the answers (inverse document frequency, Sparck Jones
    1972).  A prompt that quotes another prompt continues it, and says nothing of whose answer is whose.
    """
    texts = [" ".join(str(message.get("content", "")) for message in prompt.messages) for prompt in prompts]
    asked = [str(prompt.messages[-1].get("content", "")) for prompt in prompts]
    said = [Counter(dict.fromkeys(_WORD.findall(text.casefold()), 1)) for text in texts]
    told = [Counter(dict.fromkeys(_WORD.findall(text.casefold()), 1)) for text in answers]
    in_prompts, in_answers = sum(said, Counter()), sum(told, Counter())
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
            fit_nn[i, j] = math.fsum(weight[word] for word in told[j].keys() & said[i].keys())
    return fit_nn / np.maximum(np.sqrt([len(words) or 1 for words in told]), 1.0)[None, :]
