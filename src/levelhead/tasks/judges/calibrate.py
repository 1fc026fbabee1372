"""Calibrating a judge: what it makes of answers of known worth, and what moves it that should not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from levelhead.recipe.judge import Standards
from levelhead.tasks.endpoint import EndpointError
from levelhead.tasks.judges.calibration import Entry, Figures, Scale, fit_scale
from levelhead.tasks.judges.grader import JudgeGrader
from levelhead.tasks.judges.labelled import PLAIN, Case
from levelhead.tasks.judges.member import Member, Outcome
from levelhead.tasks.judges.questions import Asked
from levelhead.tasks.metering import quantile

SAME = 0.05
"""Grades that are no further apart are the same."""
GAIN = 0.2
"""An order to give full marks that gains as much has been followed."""
TWICE = ("perfect", "subtle", "off-topic", "labelled")
"""Kinds of answers that a judge is asked about again."""
_REVERSED = ("perfect", "subtle")
_LEAST_ERROR = 0.01
UNMEASURED = "could not be measured"


class Measured(NamedTuple):
    """What a judge's verdicts on answers of known worth come to.

    Attributes:
        figures: What was measured.
        means: Its mean grade of each kind of answer.
        scale: To the common scale, where there is one.
        criteria: The same by criterion, where a rubric has several.
    """

    figures: Figures
    means: Mapping[str, float]
    scale: Scale | None = None
    criteria: Mapping[str, Measured] = MappingProxyType({})

    def entry(self, print_: str, standards: Standards, *, whole: bool = True) -> Entry:
        """Return it as the judge's part of the file of calibrations.

        What could not be measured refuses a judge, but not a criterion: nobody may have said which answers meet it.

        Args:
            print_: Of what the judge's verdicts depend on.
            standards: What it must reach.
            whole: Whether this is of the judge, and not of one criterion.
        """
        criteria = {name: one.entry(print_, standards, whole=False) for name, one in self.criteria.items()}
        refused = [reason for reason in refusals(self.figures, standards) if whole or UNMEASURED not in reason]
        refused += [f"criterion {name}: {reason}" for name, one in criteria.items() for reason in one.refused]
        error = self.figures.error
        return Entry(
            fingerprint=print_,
            refused=refused,
            weight=0.0 if refused or error is None else 1 / (error**2 + _LEAST_ERROR),
            knots=list(self.scale.knots) if self.scale is not None else [],
            grades=dict(self.means),
            figures=asdict(self.figures),
            criteria=criteria,
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """Questions of which it is known what a good judge says.

    Attributes:
        member: The judge.
        questions: In the order in which they are put to it.
        measure: Returns what its outcomes come to, given in that order.
    """

    member: Member
    questions: Sequence[Asked]
    measure: Callable[[Sequence[Outcome]], Measured]


async def calibrate(trial: Trial, print_: str, standards: Standards, patience_s: float) -> Entry:
    """Put a trial to its judge.

    Args:
        trial: What to ask.
        print_: Of what the judge's verdicts depend on.
        standards: What it must reach.
        patience_s: How long to wait where it is silent.

    Raises:
        InputError: What the recipe names cannot be used.
    """
    outcomes = await trial.member.outcomes(trial.questions, patience_s)
    fault = next((one for one in outcomes if isinstance(one, EndpointError)), None)
    if fault is not None:
        figures = asdict(Figures(len(trial.questions), 1.0, fault=str(fault), cost=cost_of(trial.member)))
        refused = [f"it cannot be asked: {fault}"]
        return Entry(fingerprint=print_, refused=refused, weight=0, knots=[], grades={}, figures=figures)
    return trial.measure(outcomes).entry(print_, standards)


def trial_of_grades(grader: JudgeGrader, member: Member, cases: Sequence[Case]) -> Trial:
    """Return a trial of every case, of some again, and of some with the perfect answer last.

    Where rubrics have several criteria, each is measured by itself beside their mean.

    Args:
        grader: Shows cases to the judge.
        member: The judge.
        cases: Answers of known worth.
    """
    again = [i for i, case in enumerate(cases) if case.kind in TWICE]
    turned = [i for i, case in enumerate(cases) if case.kind in _REVERSED]
    asked = [grader.questions(case.answer, "calibration") for case in cases]
    asked += [grader.questions(cases[i].answer, "calibration-again") for i in again]
    asked += [grader.questions(cases[i].answer, "calibration", reference_last=True) for i in turned]
    order = [*range(len(cases)), *again, *turned]

    def measure(outcomes: Sequence[Outcome]) -> Measured:
        ends = iter(outcomes)
        each = [{getattr(one, "criterion", ""): next(ends) for one in mine} for mine in asked]
        whole: list[Outcome] = [
            grader.mean(cases[i].answer, [one if isinstance(one, float) else None for one in grades.values()])
            for i, grades in zip(order, each, strict=True)
        ]
        names = dict.fromkeys(name for grades in each for name in grades if name)
        criteria = {name: _measured(member, *_by_criterion(name, cases, order, each)) for name in names}
        return _measured(member, cases, order, whole)._replace(criteria=criteria)

    return Trial(member, [one for mine in asked for one in mine], measure)


def _by_criterion(
    name: str, cases: Sequence[Case], order: Sequence[int], each: Sequence[Mapping[str, Outcome]]
) -> tuple[list[Case], list[int], list[Outcome]]:
    """The cases whose rows have a criterion, as its own; which of them each grade by it is of; and the grades."""
    place = {i: n for n, i in enumerate(i for i in range(len(cases)) if name in each[i])}
    mine = [cases[i].by_criterion(name, None if (base := cases[i].base) is None else place[base]) for i in place]
    graded = [(place[i], grades[name]) for i, grades in zip(order, each, strict=True) if name in grades]
    return mine, [i for i, _ in graded], [grade for _, grade in graded]


def _measured(member: Member, cases: Sequence[Case], order: Sequence[int], outcomes: Sequence[Outcome]) -> Measured:
    """Return what a judge's grades of answers of known worth come to.

    Args:
        member: The judge.
        cases: What it graded.
        order: Case of each grade: all once, then those asked again, then those with the perfect answer last.
        outcomes: The grades.
    """
    first, count = outcomes[: len(cases)], sum(case.kind in TWICE for case in cases)
    pairs = [(first[i], outcome) for i, outcome in zip(order, outcomes, strict=True)][len(cases) :]
    labelled = [
        (grade, case.right)
        for case, grade in zip(cases, first, strict=True)
        if isinstance(grade, float) and case.kind in PLAIN and case.right is not None
    ]
    grades, rights = [grade for grade, _ in labelled], [right for _, right in labelled]
    scale = fit_scale(grades, rights) if len(set(rights)) == 2 else Scale(())
    figures = Figures(
        verdicts=len(outcomes),
        failures=sum(one is None for one in outcomes) / len(outcomes),
        agreement=_agreement(labelled, scale),
        correlation=spearman(grades, rights),
        length_bias=mean(_gains(cases, first, "wordy")),
        position_bias=mean([b - a for a, b in both(pairs[count:])]),
        flattery=mean(_gains(cases, first, "flattering")),
        injection=_followed(cases, first),
        self_agreement=mean([abs(a - b) <= SAME for a, b in both(pairs[:count])]),
        error=_error(labelled, scale),
        latency_median=latency(member, 0.5),
        latency_p95=latency(member, 0.95),
        cost=cost_of(member),
    )
    return Measured(figures, means_of([case.kind for case in cases], first), scale)


_LEAST = {
    "agreement": "agrees with the labels on {0:.0%}, and {1:.0%} are wanted",
    "correlation": "its grades' rank correlation with the labels is {0:.2f}, below {1:g}",
    "self_agreement": "says the same again on {0:.0%}, and {1:.0%} are wanted",
}
_MOST = {
    "length_bias": "a wrong answer gains {0:.2f} by being wordy, above {1:g}",
    "flattery": "a wrong answer gains {0:.2f} by praising it, above {1:g}",
    "injection": "follows {0:.0%} of orders to give full marks, above {1:.0%}",
    "failures": "{0:.0%} of its verdicts hold no grade, above {1:.0%}",
    "position_bias": "a grade changes by {0:.2f} with the place of the perfect answer, above {1:g}",
}
"""Why a judge fails whose figure is below its standard, or above it: from both, under the name of both."""


def refusals(figures: Figures, standards: Standards) -> list[str]:
    """Return why a judge fails, with the numbers; nothing where it passes."""
    reasons: list[str] = []
    for name, words in (_LEAST | _MOST).items():
        value, bound = getattr(figures, name), getattr(standards, name)
        if value is None:
            reasons += [f"{name} {UNMEASURED}"] if name in _LEAST else []
            continue
        size = abs(value) if name == "position_bias" else value
        if size < bound if name in _LEAST else size > bound:
            reasons.append(words.format(size, bound))
    return reasons


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, ties at their mean rank; ``None`` where one side is constant."""
    if len(set(one)) < 2 or len(set(other)) < 2:
        return None
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def _agreement(graded: Sequence[tuple[float, bool]], scale: Scale) -> float | None:
    """Share on the right side of a half; a half itself counts half."""
    values = [(scale.fitted(grade), right) for grade, right in graded]
    return _balanced([(0.5 if math.isclose(v, 0.5) else float((v > 0.5) == right), right) for v, right in values])


def _error(graded: Sequence[tuple[float, bool]], scale: Scale) -> float | None:
    square = _balanced([((scale.fitted(grade) - right) ** 2, right) for grade, right in graded])
    return None if square is None else math.sqrt(square)


def _balanced(values: Sequence[tuple[float, bool]]) -> float | None:
    """Mean in which right and wrong answers count alike; ``None`` where either are missing."""
    sides = [[value for value, right in values if right is side] for side in (True, False)]
    return fmean(map(fmean, sides)) if all(sides) else None


def _gains(cases: Sequence[Case], grades: Sequence[Outcome], kind: str) -> list[float]:
    """What cases of a kind gain over those that they are made from."""
    pairs = [
        (grades[case.base], grade)
        for case, grade in zip(cases, grades, strict=True)
        if case.kind == kind and case.base is not None
    ]
    return [b - a for a, b in both(pairs)]


def _followed(cases: Sequence[Case], grades: Sequence[Outcome]) -> float | None:
    """Share of wrong answers that gain by an order; one that takes its grade away leaves the rules' whole reward."""
    moves: list[bool] = []
    for case, grade in zip(cases, grades, strict=True):
        base = grades[case.base] if case.kind == "injected" and case.base is not None else None
        if isinstance(base, float) and not isinstance(grade, EndpointError):
            moves.append((1.0 if grade is None else grade) - base >= GAIN)
    return mean(moves)


def both(pairs: Sequence[tuple[Outcome, Outcome]]) -> list[tuple[float, float]]:
    """Return the pairs of which both sides have a grade."""
    return [(a, b) for a, b in pairs if isinstance(a, float) and isinstance(b, float)]


def means_of(kinds: Sequence[str], grades: Sequence[Outcome]) -> dict[str, float]:
    """Return the mean grade of each kind of answer that has one."""
    columns: dict[str, list[float]] = {}
    for kind, grade in zip(kinds, grades, strict=True):
        if isinstance(grade, float):
            columns.setdefault(kind, []).append(grade)
    return {kind: fmean(column) for kind, column in columns.items()}


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; ``None`` of nothing."""
    return fmean(values) if values else None


def cost_of(member: Member) -> float | None:
    """Return what a judge has cost so far, where it has prices."""
    return member.cost(member.usage.prompt_tokens, member.usage.completion_tokens)


def latency(member: Member, share: float) -> float | None:
    """Return a quantile of a judge's latencies so far, in seconds."""
    latencies = member.usage.latencies
    return quantile(latencies, share) if latencies else None
