"""What a policy that does not read would get: the best constant answer, not flattered by having been chosen.

Candidates are answers seen in evaluations, perfect answers to training prompts, the task's own constants and the empty
answer.  The items are dealt into two halves.  The best answer to each half is found by sequential halving (Karnin,
Koren and Somekh 2013: all candidates on a few items, the better half of them on twice as many, and so on) and scored
on the other half, so that every item is scored by an answer that was chosen without it (cross-fitting).  The mean over
all items is then an unbiased score of "the best constant answer that can be found from half of the items".

Where a glance tells prompts apart (:meth:`levelhead.tasks.base.Task.form`), each form has a constant answer of its own:
"no" to every verdict and "unknown" to every question is what a policy writes that looks at nothing but the form.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from levelhead.errors import RewardError
from levelhead.records import Prompt
from levelhead.tasks.base import Answer, Baseline, EpisodeLostError, SingleTurnTask, Task
from levelhead.tasks.splits import stable_hash

CANDIDATES = 64
"""Candidates of a task, where there are that many."""
PLAIN = ("0", "1", "10", "42", "yes", "no", "A", "B", "true", "unknown")
"""Answers that many rewards pay something for, whatever is asked."""
DEMONSTRATIONS = 128
"""Training prompts whose perfect answers are candidates, the most frequent first."""
FIRST_ITEMS = 8
"""Items that every candidate is scored on."""
BUDGET = 30.0
"""Seconds that a search may take by the speed of its first calls; beyond that it is not made."""
LEFT = 1 / 6
"""Share of the way from an empty answer to a perfect one that a harmless constant answer may miss."""
FEWEST_OF_A_FORM = 8
"""Prompts of a form that has a constant answer of its own; rarer ones are taken together."""
TIMED = 5
"""Calls after which that speed is known; their median, so that one slow call says nothing."""

Encode = Callable[[Prompt, str], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over items and its standard error."""

    score: float
    se: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Return the mean and ``std / sqrt(n)`` with the sample's standard deviation (ddof 1); 0 for one value."""
        se = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return cls(statistics.fmean(values), se)

    @classmethod
    def mean(cls, parts: Sequence[Estimate]) -> Estimate:
        """Return the mean of independent estimates; its standard error is ``sqrt(sum se^2) / S``."""
        return cls(statistics.fmean(p.score for p in parts), math.hypot(*(p.se for p in parts)) / len(parts))

    def to_json(self) -> dict[str, float]:
        """The estimate as a dict for ``summary.json``."""
        return {"score": self.score, "se": self.se}


@dataclass(frozen=True, slots=True)
class Constant:
    """The best constant answer to some prompts.

    Attributes:
        answer: The answer (of those to the two halves, the better one), or what an environment calls its script; a
            line ``form: answer`` for each form of prompt where there are several.
        scores: Score of each prompt by the answer that was chosen on the half that the prompt is not in.
    """

    answer: str
    scores: tuple[float, ...]


class ConstantSearch:
    """Looks for the best constant answer to the prompts of one task, and remembers every score.

    Args:
        task: Single-turn tasks are scored by their rules (:attr:`SingleTurnTask.rules`); judges are not asked.
        encode: Returns the completion tokens of an answer to a prompt, for rewards that look at them.
        seed: Chooses the training prompts whose perfect answers are candidates.

    Attributes:
        slow: Whether scores take so long that nothing is looked for.
    """

    def __init__(self, task: Task, encode: Encode, seed: int) -> None:
        self._task: Task | None = task.rules if isinstance(task, SingleTurnTask) else task
        self._encode, self._seed = encode, seed
        self._scores: dict[tuple[str, str], float] = {}
        self._tokens: dict[str, tuple[int, ...]] = {}
        self._unfit: set[str] = set()
        self._own: list[str] = []
        self._shown: list[str] | None = None
        self._scripts: dict[str, Baseline] = {}
        self._seconds: list[float] = []
        self.slow = False

    @property
    def possible(self) -> bool:
        """Whether anything is known that costs no calls elsewhere: a rule to score by, or an environment's scripts."""
        task = self._task
        return not self.slow and task is not None and (isinstance(task, SingleTurnTask) or task.has_baselines)

    def cost(self, items: int) -> int:
        """Return about how many answers a search among so many items scores, none being remembered."""
        half = max(items // 2, 1)
        rounds = max(1, (half // FIRST_ITEMS).bit_length())
        return 2 * (CANDIDATES * min(FIRST_ITEMS, half) * rounds + half)

    async def best(
        self, prompts: Sequence[Prompt], seen: Mapping[str, int] | None = None, weights: Sequence[float] | None = None
    ) -> Constant | None:
        """Return the best constant answer, or the best one to each form of prompt.

        Args:
            prompts: At least two; their order does not matter to the choice.
            seen: Answers that a policy has given, and how often.
            weights: Of each prompt, in the choice; all alike unless given.

        Returns:
            ``None`` where there are no candidates, fewer than two prompts, or scores that cost too much.
        """
        weights = weights or [1.0] * len(prompts)
        forms = self._forms(prompts)
        constants: dict[str, Constant] = {}
        for form, rows in forms.items():
            constant = await self._best([prompts[i] for i in rows], seen or {}, [weights[i] for i in rows])
            if constant is None:
                return None
            constants[form] = constant
        if len(constants) == 1:
            return next(iter(constants.values()))
        scores = [0.0] * len(prompts)
        for form, rows in forms.items():
            for i, score in zip(rows, constants[form].scores, strict=True):
                scores[i] = score
        lines = (f"{form}: {' '.join(constant.answer.split())}" for form, constant in sorted(constants.items()))
        return Constant("\n".join(lines), tuple(scores))

    def _forms(self, prompts: Sequence[Prompt]) -> dict[str, list[int]]:
        """Positions of the prompts of each form; forms of which there are few are one."""
        forms: dict[str, list[int]] = {}
        for i, prompt in enumerate(prompts):
            forms.setdefault("" if self._task is None else self._task.form(prompt), []).append(i)
        rare = [form for form, rows in forms.items() if len(rows) < FEWEST_OF_A_FORM]
        if len(rare) == len(forms):
            return {"": list(range(len(prompts)))}
        if rare:
            most = max(forms, key=lambda form: len(forms[form]))
            home = "others" if len(rare) > 1 and sum(len(forms[form]) for form in rare) >= FEWEST_OF_A_FORM else most
            together = [i for form in rare for i in forms.pop(form)]
            forms[home] = sorted([*forms.get(home, []), *together])
        return forms

    async def _best(
        self, prompts: Sequence[Prompt], seen: Mapping[str, int], weights: Sequence[float]
    ) -> Constant | None:
        """Return the best single answer to prompts of one form."""
        if len(prompts) < 2 or not self.possible:
            return None
        self._scripts = {script.answer: script for script in await self._baselines(len(prompts))}
        texts = [text for text in [*self._scripts, *self._candidates(seen)] if text not in self._unfit]
        order = sorted(range(len(prompts)), key=lambda i: (stable_hash(f"constant/{prompts[i].id}"), prompts[i].id))
        halves = order[::2], order[1::2]
        winners = [await self._winner(texts, prompts, half, weights) for half in halves]
        scores = [0.0] * len(prompts)
        means = []
        for winner, half in zip(winners, halves[::-1], strict=True):
            if winner is None:
                return None
            await self._score([winner], prompts, half)
            if winner in self._unfit or self.slow:
                return None
            for i in half:
                scores[i] = self._scores[winner, prompts[i].id]
            means.append(statistics.fmean([scores[i] for i in half], [weights[i] for i in half]))
        answer = winners[0] if means[0] >= means[1] else winners[1]
        assert answer is not None  # noqa: S101 - both halves have one
        return Constant(answer, tuple(scores))

    async def perfect_and_empty(self, prompts: Sequence[Prompt]) -> tuple[float | None, float | None]:
        """Return the mean scores of perfect answers and of an empty one; ``None`` where that is not known."""
        if not isinstance(self._task, SingleTurnTask):
            return None, None
        perfect = [score for score in await self.perfect(prompts) if score is not None]
        await self._score([""], prompts, range(len(prompts)))
        empty = [self._scores["", prompt.id] for prompt in prompts if ("", prompt.id) in self._scores]
        return statistics.fmean(perfect) if perfect else None, statistics.fmean(empty) if empty else None

    async def perfect(self, prompts: Sequence[Prompt]) -> list[float | None]:
        """Return the score of each prompt's perfect answer; ``None`` where that is not known."""
        if not isinstance(self._task, SingleTurnTask):
            return [None] * len(prompts)
        scores: list[float | None] = []
        for prompt in prompts:
            answer = (self._task.oracle(prompt) or (None,))[0]
            if answer is not None:
                await self._score([answer], [prompt], [0])
            scores.append(None if answer is None else self._scores.get((answer, prompt.id)))
        return scores

    async def blind(self, prompts: Sequence[Prompt]) -> Estimate | None:
        """Return what perfect answers score on other prompts than theirs; ``None`` where they are not known."""
        if not isinstance(self._task, SingleTurnTask) or len(prompts) < 2:
            return None
        shown = [(self._task.oracle(prompt) or (None,))[0] for prompt in prompts]
        values = []
        for prompt, answer in zip(prompts, [*shown[1:], shown[0]], strict=True):
            if answer is not None:
                await self._score([answer], [prompt], [0])
                values += [self._scores[answer, prompt.id]] if (answer, prompt.id) in self._scores else []
        return Estimate.of(values) if len(values) > 1 else None

    def _candidates(self, seen: Mapping[str, int]) -> list[str]:
        """The empty answer and the task's constants, then frequent answers and frequent demonstrations in turn."""
        if not isinstance(self._task, SingleTurnTask):
            return []
        if self._shown is None:
            train = self._task.prompts("train", self._seed)
            shown = [self._task.oracle(prompt) for prompt in itertools.islice(train, DEMONSTRATIONS)]
            texts = Counter(answers[0] for answers in shown if answers)
            self._shown = [text for text, _ in texts.most_common()]
            self._own = ["", *self._task.constants(), *PLAIN]
        frequent = [text for text, _ in Counter(seen).most_common()]
        turns = itertools.zip_longest(frequent, self._shown)
        mixed = (text for pair in turns for text in pair if text is not None)
        own = list(dict.fromkeys(self._own))
        room = max(CANDIDATES - len(own), CANDIDATES // 2)
        return [*own, *itertools.islice((t for t in dict.fromkeys(mixed) if t not in own), room)]

    async def _winner(
        self, texts: Sequence[str], prompts: Sequence[Prompt], half: Sequence[int], weights: Sequence[float]
    ) -> str | None:
        """Return the best answer to some of the prompts; of equals the one that comes first."""
        candidates, n = list(texts), min(FIRST_ITEMS, len(half))
        while True:
            items = half[:n]
            await self._score(candidates, prompts, items)
            candidates = [text for text in candidates if text not in self._unfit]
            if not candidates or self.slow:
                return None
            share = [weights[i] for i in items]
            columns = {text: [self._scores[text, prompts[i].id] for i in items] for text in candidates}
            means = {text: statistics.fmean(column, share) for text, column in columns.items()}
            candidates.sort(key=means.__getitem__, reverse=True)
            ahead = candidates[: math.ceil(len(candidates) / 2)]
            if n == len(half) or len(ahead) == 1:
                return candidates[0]
            candidates, n = ahead, min(2 * n, len(half))

    async def _score(self, texts: Iterable[str], prompts: Sequence[Prompt], items: Sequence[int]) -> None:
        """Score answers, or scripts, on items that are not known yet.

        One answer at a time: what an answer is worth does not depend on the others that are tried beside it.
        """
        for text in texts:
            new = [prompts[i] for i in items if (text, prompts[i].id) not in self._scores]
            if not new or text in self._unfit or self.slow:
                continue
            if text in self._scripts:
                await self._play(self._scripts[text], new)
                continue
            start = time.perf_counter()
            try:
                await self._rate(text, new)
            except RewardError:
                self._unfit.add(text)
            self._seconds.append((time.perf_counter() - start) / len(new))
            rate = statistics.median(self._seconds) if len(self._seconds) >= TIMED else 0.0
            self.slow = rate * self.cost(len(prompts)) > BUDGET

    async def _baselines(self, prompts: int) -> Sequence[Baseline]:
        return await self._task.baselines(prompts) if self._task is not None else ()

    async def _play(self, script: Baseline, prompts: Sequence[Prompt]) -> None:
        try:
            scores = await script.play(prompts)
        except EpisodeLostError:
            self._unfit.add(script.answer)
        else:
            self._scores.update({(script.answer, p.id): score for p, score in zip(prompts, scores, strict=True)})

    async def _rate(self, text: str, prompts: Sequence[Prompt]) -> None:
        assert isinstance(self._task, SingleTurnTask)  # noqa: S101 - only such a task has texts as candidates
        answers = [Answer(prompt, text, self._ids(prompt, text)) for prompt in prompts]
        for prompt, score in zip(prompts, await self._task.score_batch(answers), strict=True):
            if score is None:
                self._unfit.add(text)
            else:
                self._scores[text, prompt.id] = score.total

    def _ids(self, prompt: Prompt, text: str) -> tuple[int, ...]:
        if text not in self._tokens:
            self._tokens[text] = self._encode(prompt, text)
        return self._tokens[text]


def leaves_much(constant: float, perfect: float | None, empty: float | None) -> bool:
    """Whether an answer that needs no reading is far from a perfect one, so that a policy that settles on it has lost.

    Far is more than a sixth of the way from an empty answer to a perfect one.  Where reading pays less than that (the
    best fixed workflow is nearly the best one for every problem), settling is no disaster.  Not knowing is far.
    """
    if perfect is None or empty is None or perfect <= empty:
        return True
    return perfect - constant > LEFT * (perfect - empty)
