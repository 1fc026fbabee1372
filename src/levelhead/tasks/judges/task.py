"""A task whose right answers judges grade as well: rules first, and grades can only take away."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from dataclasses import replace

import httpx2

from levelhead.metrics import held_out
from levelhead.recipe.judge import Judge, Judges
from levelhead.records import Event, Message, Prompt, Rollout, Score, Severity
from levelhead.rollout.draws import generator
from levelhead.tasks.base import GRADE, Answer, Baseline, Judged, SingleTurnTask, Split, TrimsPrompts
from levelhead.tasks.judges.anchors import AnchorSet
from levelhead.tasks.judges.lineup import raised
from levelhead.tasks.judges.questions import ANY_RUBRIC, RUBRICS, Asked, Pair, Question, read_references, text_of
from levelhead.tasks.judges.seat import Seat
from levelhead.tasks.judges.seats import make_lineup
from levelhead.tasks.judges.tournament import tournaments
from levelhead.tasks.metering import JudgeUse, RewardTally, Usage


class JudgedTask(Judged):
    """A task whose right answers are graded by judges as well.

    Attributes:
        name: The judged task's.
        lineup: Who grades.
        failed: Verdicts without a grade so far.
        judged: Answers shown to the judges so far.
    """

    def __init__(
        self,
        task: SingleTurnTask,
        kind: str,
        section: Judge | Judges,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Put judges behind a task.

        Args:
            task: Scores first, by its rules.
            kind: The task's kind, for the rubric.
            section: The recipe's ``judge`` or ``judges`` section.
            transport: Another way to the endpoints than the network, for tests.

        Raises:
            InputError: A cache of replies cannot be opened, or a function or calibration is not there or no such one.
        """
        self.task, self.section, self.name = task, section, task.name
        self.failed = self.judged = 0
        self.rubric = section.rubric or RUBRICS.get(kind, ANY_RUBRIC)
        self.pairwise = section.pairwise
        path = self.pairwise.reference if self.pairwise is not None else None
        self._references = read_references(path) if path is not None else {}
        self.lineup = make_lineup(section, task.name, self.rubric, transport)
        every = section.anchors.every if isinstance(section, Judges) else 0
        self.anchors = AnchorSet(section.anchors) if isinstance(section, Judges) and every else None
        self._happened: list[tuple[int, int]] = []
        self._metered = (0, 0)
        self._counted = [Usage().counts() for _ in self.lineup.seats]

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        """Yield the judged task's prompts."""
        return self.task.prompts(split, seed)

    def trim(self, fitted: Mapping[str, Prompt | None]) -> None:
        """Replace or leave out prompts of the judged task."""
        if isinstance(self.task, TrimsPrompts):
            self.task.trim(fitted)

    def score(self, prompt: Prompt, text: str) -> Score:
        """Score one answer by the rules alone; the judge is asked in :meth:`score_batch`."""
        return self.task.score(prompt, text)

    def oracle(self, prompt: Prompt) -> list[str] | None:
        """Return the judged task's perfect answer."""
        return self.task.oracle(prompt)

    @property
    def rules(self) -> SingleTurnTask | None:
        """The judged task without its judge."""
        return self.task.rules

    @property
    def guesses(self) -> bool:
        """Whether the judged task's perfect answers are guesses."""
        return self.task.guesses

    def strata(self, prompt: Prompt) -> Mapping[str, str]:
        """Return the judged task's strata."""
        return self.task.strata(prompt)

    def oracle_bytes(self, prompt: Prompt) -> int | None:
        """Return the judged task's bound of a perfect answer's length."""
        return self.task.oracle_bytes(prompt)

    def lexicon(self) -> Iterator[str]:
        """Yield the judged task's text beyond its prompts."""
        return self.task.lexicon()

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """The judged task's least and most reward: a grade takes away of what is above 0, and no more than that."""
        return self.task.reward_range

    @property
    def shares(self) -> Mapping[str, float]:
        """The judged task's kinds of problems."""
        return self.task.shares

    def kind_of(self, prompt: Prompt) -> str:
        """Return the judged task's kind of a prompt."""
        return self.task.kind_of(prompt)

    @property
    def has_baselines(self) -> bool:
        """Whether the judged task plays its constant policies itself."""
        return self.task.has_baselines

    async def baselines(self, prompts: int) -> Sequence[Baseline]:
        """Return the judged task's scripts, whose scores are those of its rules."""
        return await self.task.baselines(prompts)

    def constants(self) -> Sequence[str]:
        """Return the judged task's constant answers."""
        return self.task.constants()

    async def score_batch(self, answers: Sequence[Answer]) -> list[Score | None]:
        """Score by the rules, then let the judges grade what they find right.

        Equal answers to one prompt are one call.  A verdict without a grade concerns its whole group, the answers to
        one prompt: either the rules' rewards stand for all of them, or it is dropped together with as large a share
        of the answers that the judge was not asked about (see :func:`draw_lots`).

        Raises:
            EndpointError: The judge refuses or stays silent, or the budget is used up.
            InputError: The environment variable that should hold the key is not set.
        """
        await self._ask_anchors()
        scores = await self.task.score_batch(answers)
        asked = [i for i, score in enumerate(scores) if score is not None and score.valid and score.total > 0]
        if not asked or not self.asks:
            return scores
        grades = await self._grades(answers, asked)
        failed = sum(grade is None for grade in grades.values())
        self.judged += len(grades)
        self.failed += failed
        self._happened.append((len(grades), failed))
        missing = {answers[i].prompt.id for i, grade in grades.items() if grade is None}
        for i, grade in grades.items():
            counts = self.section.on_failure == "drop" or answers[i].prompt.id not in missing
            scores[i] = self._weigh(scores[i], grade, counts=counts)
        if missing and self.section.on_failure == "drop":
            for i in draw_lots(answers, grades):
                scores[i] = None
        return scores

    async def grade(self, answers: Sequence[Answer], patience_s: float | None = None) -> list[float | None]:
        """Return the judge's grade in [0, 1] of each answer, right or wrong; ``None`` where it gives none.

        Args:
            answers: What to grade.
            patience_s: How long to wait for a silent endpoint, if less than the recipe says.

        Raises:
            EndpointError: The judge refuses or stays silent, or the budget is used up.
            InputError: The environment variable that should hold the key is not set.
        """
        rated = [i for i, one in enumerate(answers) if self.pairwise is None or self.reference(one.prompt) is not None]
        grades = await self.lineup.grade([self.question(answers[i]) for i in rated], patience_s) if rated else []
        by_index = dict(zip(rated, grades, strict=True))
        return [by_index.get(i) for i in range(len(answers))]

    async def _grades(self, answers: Sequence[Answer], asked: Sequence[int]) -> dict[int, float | None]:
        """Return the grades of some answers, by index: of a tournament those of each group together.

        An answer that is the only one to its prompt, as in an evaluation, is compared with the reference answer.
        """
        if self.pairwise is None or self.pairwise.kind == "reference":
            return dict(zip(asked, await self.grade([answers[i] for i in asked]), strict=True))
        drawn = Counter(answer.prompt.id for answer in answers)
        groups: dict[str, list[int]] = {}
        alone: list[int] = []
        for i in asked:
            if drawn[answers[i].prompt.id] > 1:
                groups.setdefault(answers[i].prompt.id, []).append(i)
            elif self.reference(answers[i].prompt) is not None:
                alone.append(i)

        async def compare(pairs: Sequence[tuple[str, str, str]]) -> Sequence[float | None]:
            prompts = {name: answers[members[0]].prompt for name, members in groups.items()}
            return await self.lineup.grade([self._pair(prompts[name], one, other) for name, one, other in pairs])

        texts = {name: [answers[i].text for i in members] for name, members in groups.items()}
        rates = await tournaments(texts, self.pairwise.opponents, compare)
        grades = dict(zip(alone, await self.grade([answers[i] for i in alone]), strict=True))
        return grades | {
            i: rate for name, members in groups.items() for i, rate in zip(members, rates[name], strict=True)
        }

    @property
    def titles(self) -> Sequence[str]:
        """Names of the judges; none where there is but one, which is the recipe's ``judge``."""
        return [seat.member.title for seat in self.lineup.seats] if isinstance(self.section, Judges) else ()

    @property
    def refusals(self) -> Mapping[str, Sequence[str]]:
        """Why calibrations say that judges are not worth asking, by judge."""
        return {seat.member.title: seat.refused for seat in self.lineup.seats if seat.refused}

    async def grade_by(self, title: str, answers: Sequence[Answer], patience_s: float) -> list[float | None]:
        """Return one judge's own grades, whatever the others say.

        Raises:
            EndpointError: It refuses or stays silent, or its budget is used up.
            InputError: The environment variable that should hold its key is not set.
        """
        (seat,) = [seat for seat in self.lineup.seats if seat.member.title == title]
        questions = [self.question(answer) for answer in answers]
        return raised(await seat.member.outcomes(questions, patience_s))

    def form(self, prompt: Prompt) -> str:
        """Return the judged task's form of a prompt."""
        return self.task.form(prompt)

    def question(self, answer: Answer, occasion: str = "", *, reference_last: bool = False) -> Asked:
        """Return what judges are shown of an answer: the answer, or the pair of it and the reference answer."""
        asked, reference = text_of(answer.prompt), self.reference(answer.prompt)
        if self.pairwise is not None:
            return Pair(answer.prompt.id, asked, answer.text, reference or "", None, self.rubric, occasion)
        return Question(answer.prompt.id, asked, answer.text, reference, self.rubric, occasion, reference_last)

    def reference(self, prompt: Prompt) -> str | None:
        """Return the answer that others are compared with: the recipe's, else a perfect one where one is known."""
        if self._references and (given := self._references.get(text_of(prompt))) is not None:
            return given
        perfect = self.task.oracle(prompt)
        return perfect[0] if perfect else None

    def _pair(self, prompt: Prompt, one: str, other: str) -> Pair:
        perfect = self.task.oracle(prompt)
        return Pair(prompt.id, text_of(prompt), one, other, perfect[0] if perfect else None, self.rubric)

    def at_step(self, step: int, max_steps: int) -> None:
        """Take note of how far training has come: the anchors may be due."""
        if self.anchors is not None:
            self.anchors.at_step(step, max_steps)
        self.task.at_step(step, max_steps)

    async def _ask_anchors(self) -> None:
        if self.anchors is not None and self.asks:
            news = await self.anchors.ask(self)
            self.lineup.news.extend(news)

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        """Return the judged task's metrics, the mean grade, and the share of verdicts without one."""
        notes = [r.score.info["judge"] for _, r in results if r.score is not None and "judge" in r.score.info]
        grades = [grade for grade in notes if grade is not None]
        summary = dict(self.task.summarize(results))
        if notes:
            summary[held_out.JUDGE_ERROR_RATE] = 1 - len(grades) / len(notes)
        if grades:
            summary[held_out.GRADE] = math.fsum(grades) / len(grades)
        return summary

    def canonical(self, prompt: Prompt, text: str) -> str:
        """Return what an answer says to the judged task."""
        return self.task.canonical(prompt, text)

    @property
    def concurrency(self) -> int:
        """Calls under way at once."""
        return max(seat.member.concurrency for seat in self.lineup.seats)

    @property
    def usage(self) -> Usage:
        """What the calls of the first judge have cost so far."""
        return self.lineup.seats[0].member.usage

    def drain_events(self, step: int) -> list[Event]:
        """Return what happened since the last call: news of the endpoint, and verdicts without a grade.

        These are critical where they are more than half.
        """
        events = self.task.drain_events(step)
        events += [event for seat in self.lineup.seats for event in self._of_endpoint(step, seat)]
        news = self.lineup.take_news()
        events += [
            Event(step, one.code, one.severity, f"judges of {self.name}: {one.message}", evidence=one.evidence)
            for one in news
        ]
        asked, failed = (sum(column) for column in zip(*self._happened, strict=True)) if self._happened else (0, 0)
        self._happened = []
        if not failed:
            return events
        stands = "rewards are the rules' in their groups" if self.section.on_failure == "rule" else "they were dropped"
        message = f"{failed} of {asked} verdicts on {self.name} had no grade ({self.said!r} was one); {stands}"
        severity: Severity = "critical" if failed * 2 > asked else "warning"
        evidence = {"asked": asked, "failed": failed, "cause": "no-grade"}
        return [*events, Event(step, "judge-failure", severity, message, evidence=evidence)]

    @property
    def demonstrates(self) -> bool:
        """Whether the judged task acts to demonstrate."""
        return self.task.demonstrates

    async def demonstrate(self, prompt: Prompt) -> list[tuple[list[Message], str]]:
        """Return the judged task's demonstration."""
        return await self.task.demonstrate(prompt)

    def drain_tally(self) -> RewardTally | None:
        """Return what the judged task's reward functions have logged and could not rate since the last call."""
        return self.task.drain_tally()

    def drain_use(self) -> JudgeUse:
        """Return what the judges have done and cost since the last call."""
        verdicts, failures = self.judged - self._metered[0], self.failed - self._metered[1]
        self._metered = (self.judged, self.failed)
        use = JudgeUse(verdicts=verdicts, failures=failures)
        judges: dict[str, JudgeUse] = {}
        for i, seat in enumerate(self.lineup.seats):
            usage, member = seat.member.usage, seat.member
            counts, latencies = usage.since(self._counted[i]), usage.latencies
            self._counted[i], usage.latencies = usage.counts(), []
            cost = member.cost(counts["prompt_tokens"], counts["completion_tokens"])
            mine = replace(seat.drain(), **counts, latencies=latencies, cost=cost)
            use = use + replace(mine, verdicts=0, failures=0)
            judges[member.title] = mine
        spread, self.lineup.spread = self.lineup.spread, []
        return replace(use, spread=(math.fsum(spread), len(spread)), judges=judges if self.titles else {})

    async def close(self) -> None:
        """Close the caches; they are opened again if the task is used again."""
        for seat in self.lineup.seats:
            seat.member.close()

    @property
    def said(self) -> str:
        """The last reply without a grade."""
        default = "no reference answer is known" if self.pairwise is not None else ""
        return next((seat.member.said for seat in self.lineup.seats if seat.member.said), default)

    def _of_endpoint(self, step: int, seat: Seat) -> list[Event]:
        """News of one judge's endpoint."""
        whose = f"judge of {self.name}" if len(self.lineup.seats) == 1 else f"judge {seat.member.title} of {self.name}"
        return [Event(step, "endpoint", "warning", f"{whose}: {line}") for line in seat.member.usage.take_news()]

    def _weigh(self, score: Score | None, grade: float | None, *, counts: bool) -> Score | None:
        """Put a grade on a score; one that does not count is on record and leaves the reward as it is."""
        if score is None:
            return None
        info = {**score.info, "judge": grade}
        if grade is None:
            return replace(score, info=info)
        total = score.total * (1 - self.section.weight * (1 - grade)) if counts else score.total
        return replace(score, total=total, parts={**score.parts, GRADE: grade}, info=info)


def draw_lots(answers: Sequence[Answer], grades: Mapping[int, float | None]) -> list[int]:
    """Return which answers to drop so that being dropped does not depend on being right.

    Only right answers have verdicts, so that only they can lack one.  Of the other answers in a group (all answers to
    one prompt) the same share is dropped by lot: if f of its n verdicts are missing and m answers had none to miss,
    m f / n of these, rounded up or down at random so that this is their mean.  Where verdicts go missing at random
    with probability q, every answer of the group, right or wrong, is dropped with probability E[f / n] = q; and
    whatever they go missing by, right and wrong answers keep their proportion.  A group without any verdict takes the
    share of all groups together.

    Args:
        answers: Of a step, all rollouts of each prompt.
        grades: By index, of the answers that were judged; ``None`` where the verdict is missing.
    """
    groups: dict[str, MutableSequence[int]] = {}
    for i, answer in enumerate(answers):
        groups.setdefault(answer.prompt.id, []).append(i)
    usual = sum(grade is None for grade in grades.values()) / max(len(grades), 1)
    dropped: list[int] = []
    for name, members in groups.items():
        judged = [i for i in members if i in grades]
        missing = [i for i in judged if grades[i] is None]
        others = [i for i in members if i not in grades]
        share = len(missing) / len(judged) if judged else usual
        # The answers are drawn by the recipe's seed, and the lot depends on nothing else.
        lot = generator(0, "judge-lot", name, *(ascii(answers[i].text) for i in members))
        count = int(share * len(others) + lot.random())
        dropped += [*missing, *(others[i] for i in lot.permutation(len(others))[:count])]
    return dropped
