"""Judges grade what a task's rules find right: a step of scoring that can only take away."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableSequence, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

import httpx2

from levelhead.recipe.judge import Judge, Judges
from levelhead.records import Event, Prompt, Score, Severity
from levelhead.rollout.draws import generator
from levelhead.tasks.base import Answer, SingleTurnTask
from levelhead.tasks.grader import GRADE, Criterion
from levelhead.tasks.judges.labelled import AnchorSet
from levelhead.tasks.judges.panel import make_panel, raised
from levelhead.tasks.judges.questions import ANY_RUBRIC, RUBRICS, Asked, Pair, Question, read_references, text_of
from levelhead.tasks.judges.tournament import tournaments
from levelhead.tasks.metering import JudgeUse, Usage


class JudgeGrader:
    """Judges that grade the right answers of a task.

    Attributes:
        asks: Whether judges are asked; where a preflight finds that no endpoint answers, the rules go on alone.
        panel: Who grades.
        rubric: What they grade.
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
        """Set up the judges of a task.

        Args:
            task: Whose perfect answers they are shown; its anchors are answers to its first training prompts.
            kind: The task's kind, for the rubric.
            section: The recipe's ``judge`` or ``judges`` section.
            transport: Another way to the endpoints than the network, for tests.

        Raises:
            InputError: A cache of replies cannot be opened, or a function or calibration is not there or no such one.
        """
        self._task, self._section = task, section
        self.asks = True
        self.failed = self.judged = 0
        self.rubric = section.rubric or RUBRICS.get(kind, ANY_RUBRIC)
        self._pairwise = section.pairwise
        path = self._pairwise.reference if self._pairwise is not None else None
        self._references = read_references(path) if path is not None else {}
        self.panel = make_panel(section, task.name, self.asked_by, transport)
        anchors = section.anchors if isinstance(section, Judges) and section.anchors.every else None
        self._anchors = AnchorSet(anchors, task, self.question) if anchors is not None else None
        self._verdicts: list[tuple[int, int]] = []
        self._metered = (0, 0)
        self._counted = [Usage().counts() for _ in self.panel.slots]

    @property
    def asked_by(self) -> str:
        """What calibrations hold for: the rubric, and how criteria are asked about."""
        return self.rubric + "\0together" * self._task.criteria_together

    async def weigh(self, answers: Sequence[Answer], scores: Sequence[Score | None]) -> list[Score | None]:
        """Return scores with the judges' grades put on what the rules find right.

        Equal answers to one prompt are one call.  A verdict without a grade concerns its whole group, the answers to
        one prompt: either the rules' rewards stand for all of them, or it is dropped together with as large a share
        of the answers that the judge was not asked about (see :func:`draw_lots`).

        Raises:
            EndpointError: The judge refuses or stays silent, or the budget is used up.
            InputError: The environment variable that should hold the key is not set.
        """
        if self._anchors is not None and self.asks:
            await self._anchors.ask(self.panel)
        weighed = list(scores)
        asked = [i for i, score in enumerate(scores) if score is not None and score.valid and score.total > 0]
        if not asked or not self.asks:
            return weighed
        each = (
            dict(zip(asked, await self._each([answers[i] for i in asked], self.panel.grade), strict=True))
            if self._pairwise is None
            else {}
        )
        grades = {i: self.mean(answers[i], each[i]) for i in each} or await self._grades(answers, asked)
        failed = sum(grade is None for grade in grades.values())
        self.judged += len(grades)
        self.failed += failed
        self._verdicts.append((len(grades), failed))
        missing = {answers[i].prompt.id for i, grade in grades.items() if grade is None}
        for i, grade in grades.items():
            counts = self._section.on_failure == "drop" or answers[i].prompt.id not in missing
            parts = {f"{GRADE}/{c.name}": g for c, g in zip(self._named(answers[i]), each.get(i, ()), strict=False)}
            weighed[i] = self._weigh(scores[i], grade, parts, counts=counts)
        if missing and self._section.on_failure == "drop":
            for i in draw_lots(answers, grades):
                weighed[i] = None
        return weighed

    async def grade(self, answers: Sequence[Answer], patience_s: float | None = None) -> list[float | None]:
        """Return the judges' grade in [0, 1] of each answer, right or wrong; ``None`` where they give none.

        Args:
            answers: What to grade.
            patience_s: How long to wait for a silent endpoint, if less than the recipe says.

        Raises:
            EndpointError: The judge refuses or stays silent, or the budget is used up.
            InputError: The environment variable that should hold the key is not set.
        """
        each = await self._each(answers, partial(self.panel.grade, patience_s=patience_s))
        return [self.mean(answer, grades) for answer, grades in zip(answers, each, strict=True)]

    async def _each(
        self, answers: Sequence[Answer], ask: Callable[[list[Asked]], Awaitable[Sequence[float | None]]]
    ) -> list[list[float | None]]:
        """Return the grades of each answer by its criteria; none where it cannot be compared with a reference."""
        asked = [self.questions(answer) for answer in answers]
        questions = [question for mine in asked for question in mine]
        grades = iter(await ask(questions) if questions else [])
        return [[next(grades) for _ in mine] for mine in asked]

    def questions(self, answer: Answer, occasion: str = "", *, reference_last: bool = False) -> list[Asked]:
        """Return what judges are asked about an answer, by criterion; nothing where it has nothing to be compared with.

        Args:
            answer: The answer.
            occasion: Tells apart questions that are to be asked again.
            reference_last: Whether the perfect answer is shown after the answer.
        """
        if self._pairwise is not None and self.reference(answer.prompt) is None:
            return []
        question, criteria = (
            self.question(answer, occasion, reference_last=reference_last),
            self._task.criteria(answer.prompt),
        )
        if not criteria or not isinstance(question, Question):
            return [question]
        together = self._task.criteria_together
        return [replace(question, rubric=one.text, criterion=one.name, together=together) for one in criteria]

    def mean(self, answer: Answer, grades: Sequence[float | None]) -> float | None:
        """Return the mean of an answer's grades by the weights of its criteria; ``None`` where one is missing."""
        weights = [one.weight for one in self._task.criteria(answer.prompt)] or [1.0]
        present = [grade for grade in grades if grade is not None]
        if len(present) < len(weights):
            return None
        return fmean(present, weights)

    def _named(self, answer: Answer) -> Sequence[Criterion]:
        return [one for one in self._task.criteria(answer.prompt) if one.name]

    async def _grades(self, answers: Sequence[Answer], asked: Sequence[int]) -> dict[int, float | None]:
        """Return the grades of some answers, by index: of a tournament those of each group together.

        An answer that is the only one to its prompt, as in an evaluation, is compared with the reference answer.
        """
        if self._pairwise is None or self._pairwise.kind == "reference":
            return dict(zip(asked, await self.grade([answers[i] for i in asked]), strict=True))
        sampled = Counter(answer.prompt.id for answer in answers)
        groups: dict[str, list[int]] = {}
        alone: list[int] = []
        for i in asked:
            if sampled[answers[i].prompt.id] > 1:
                groups.setdefault(answers[i].prompt.id, []).append(i)
            elif self.reference(answers[i].prompt) is not None:
                alone.append(i)

        async def compare(pairs: Sequence[tuple[str, str, str]]) -> Sequence[float | None]:
            prompts = {name: answers[members[0]].prompt for name, members in groups.items()}
            return await self.panel.grade([self._pair(prompts[name], one, other) for name, one, other in pairs])

        texts = {name: [answers[i].text for i in members] for name, members in groups.items()}
        rates = await tournaments(texts, self._pairwise.opponents, compare)
        grades = dict(zip(alone, await self.grade([answers[i] for i in alone]), strict=True))
        return grades | {
            i: rate for name, members in groups.items() for i, rate in zip(members, rates[name], strict=True)
        }

    async def grade_by(self, title: str, answers: Sequence[Answer], patience_s: float) -> list[float | None]:
        """Return one judge's own grades, whatever the others say.

        Raises:
            EndpointError: It refuses or stays silent, or its budget is used up.
            InputError: The environment variable that should hold its key is not set.
        """
        (slot,) = [slot for slot in self.panel.slots if slot.member.title == title]

        async def ask(questions: list[Asked]) -> list[float | None]:
            return raised(await slot.outcomes(questions, patience_s))

        each = await self._each(answers, ask)
        return [self.mean(answer, grades) for answer, grades in zip(answers, each, strict=True)]

    def question(self, answer: Answer, occasion: str = "", *, reference_last: bool = False) -> Asked:
        """Return what judges are shown of an answer: the answer, or the pair of it and the reference answer."""
        asked, reference = text_of(answer.prompt), self.reference(answer.prompt)
        if self._pairwise is not None:
            return Pair(answer.prompt.id, asked, answer.text, reference or "", None, self.rubric, occasion)
        criteria = self._task.criteria(answer.prompt)
        rubric = "\n".join(one.text for one in criteria) or self.rubric
        return Question(answer.prompt.id, asked, answer.text, reference, rubric, occasion, reference_last)

    def reference(self, prompt: Prompt) -> str | None:
        """Return the answer that others are compared with: the recipe's, else a perfect one where one is known."""
        if self._references and (own := self._references.get(text_of(prompt))) is not None:
            return own
        perfect = self._task.oracle(prompt)
        return perfect[0] if perfect else None

    def _pair(self, prompt: Prompt, one: str, other: str) -> Pair:
        perfect = self._task.oracle(prompt)
        return Pair(prompt.id, text_of(prompt), one, other, perfect[0] if perfect else None, self.rubric)

    @property
    def titles(self) -> Sequence[str]:
        """Names of the judges; none where there is but one, which is the recipe's ``judge``."""
        return [slot.member.title for slot in self.panel.slots] if isinstance(self._section, Judges) else ()

    @property
    def refusals(self) -> Mapping[str, Sequence[str]]:
        """Why calibrations say that judges are not worth asking, by judge."""
        return {slot.member.title: slot.refused for slot in self.panel.slots if slot.refused}

    @property
    def last_failure(self) -> str:
        """The last reply without a grade."""
        default = "no reference answer is known" if self._pairwise is not None else ""
        return next((slot.member.last_failure for slot in self.panel.slots if slot.member.last_failure), default)

    @property
    def concurrency(self) -> int:
        """Calls under way at once."""
        return max(slot.member.concurrency for slot in self.panel.slots)

    def at_step(self, step: int, max_steps: int) -> None:
        """Note how far training has come: the anchors may be due."""
        if self._anchors is not None:
            self._anchors.at_step(step, max_steps)

    def drain_events(self, step: int) -> list[Event]:
        """Return what happened since the last call: news of the endpoint, and verdicts without a grade.

        These are critical where they are more than half.
        """
        name, slots = self._task.name, self.panel.slots
        titles = [f"judge {slot.member.title} of {name}" if len(slots) > 1 else f"judge of {name}" for slot in slots]
        events = [
            Event(step, "endpoint", "warning", f"{title}: {line}")
            for title, slot in zip(titles, slots, strict=True)
            for line in slot.member.usage.take_news()
        ]
        news, self.panel.events = self.panel.events, []
        events += [replace(one, step=step, message=f"judges of {name}: {one.message}") for one in news]
        asked, failed = (sum(column) for column in zip(*self._verdicts, strict=True)) if self._verdicts else (0, 0)
        self._verdicts = []
        if not failed:
            return events
        stands = "rewards are the rules' in their groups" if self._section.on_failure == "rule" else "they were dropped"
        message = f"{failed} of {asked} verdicts on {name} had no grade ({self.last_failure!r} was one); {stands}"
        severity: Severity = "critical" if failed * 2 > asked else "warning"
        evidence = {"asked": asked, "failed": failed, "cause": "no-grade"}
        return [*events, Event(step, "judge-failure", severity, message, evidence=evidence)]

    def drain_use(self) -> JudgeUse:
        """Return what the judges have done and cost since the last call."""
        verdicts, failures = self.judged - self._metered[0], self.failed - self._metered[1]
        self._metered = (self.judged, self.failed)
        use = JudgeUse(verdicts=verdicts, failures=failures)
        judges: dict[str, JudgeUse] = {}
        for i, slot in enumerate(self.panel.slots):
            usage, member = slot.member.usage, slot.member
            counts, latencies = usage.since(self._counted[i]), usage.latencies
            self._counted[i], usage.latencies = usage.counts(), []
            cost = member.cost(counts["prompt_tokens"], counts["completion_tokens"])
            mine = replace(slot.drain(), **counts, latencies=latencies, cost=cost)
            use = use + replace(mine, verdicts=0, failures=0)
            judges[member.title] = mine
        spread, self.panel.spread = self.panel.spread, []
        return replace(use, spread=(math.fsum(spread), len(spread)), judges=judges if self.titles else {})

    async def close(self) -> None:
        """Close the caches; they are opened again if judges are asked again."""
        for slot in self.panel.slots:
            slot.member.close()

    def _weigh(
        self, score: Score | None, grade: float | None, parts: Mapping[str, float | None], *, counts: bool
    ) -> Score | None:
        """Put a grade on a score; one that does not count is on record and leaves the reward as it is."""
        if score is None:
            return None
        info = {**score.info, "judge": grade}
        if grade is None:
            return replace(score, info=info)
        total = score.total * (1 - self._section.weight * (1 - grade)) if counts else score.total
        present = {name: value for name, value in parts.items() if value is not None}
        return replace(score, total=total, parts={**score.parts, GRADE: grade, **present}, info=info)


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
