"""Calibrating a judge of pairs: what it makes of answers of known worth beside each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from levelhead.tasks.judges.calibrate import (
    GAIN,
    SAME,
    TWICE,
    Measured,
    Trial,
    both,
    cost_of,
    latency,
    mean,
    means_of,
    spearman,
)
from levelhead.tasks.judges.calibration import Figures
from levelhead.tasks.judges.grader import JudgeGrader
from levelhead.tasks.judges.labelled import PLAIN, Case, Kind
from levelhead.tasks.judges.member import Member, Outcome
from levelhead.tasks.judges.questions import Pair, text_of
from levelhead.tasks.judges.slot import TIE, settled


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two answers that a judge compares.

    Attributes:
        kind: Of the case that this is about.
        case: Its index.
        pair: ``perfect`` against it, for plain kinds; it against what it is made from (``wordy``, ``flattering``) or
            against the perfect answer (``injected``).
    """

    kind: Kind
    case: int
    pair: Pair


def meetings(cases: Sequence[Case], rubric: str) -> list[Meeting]:
    """Return what is compared with what."""
    perfect = {case.answer.prompt.id: case.answer.text for case in cases if case.kind == "perfect"}
    result: list[Meeting] = []
    for i, case in enumerate(cases):
        prompt, mine = case.answer.prompt, case.answer.text
        best = perfect[prompt.id]
        if case.kind == "perfect":
            continue
        texts = (best, mine) if case.kind in PLAIN else (mine, best)
        if case.kind in {"wordy", "flattering"} and case.base is not None:
            texts = (mine, cases[case.base].answer.text)
        pair = Pair(prompt.id, text_of(prompt), *texts, None, rubric, "calibration")
        result.append(Meeting(case.kind, i, pair))
    return result


def trial_of_pairs(grader: JudgeGrader, member: Member, cases: Sequence[Case]) -> Trial:
    """Return a trial of every meeting in both orders, and of some again; arguments as of :func:`trial_of_grades`."""
    met = meetings(cases, grader.rubric)
    again = [i for i, one in enumerate(met) if one.kind in TWICE]
    pairs = [one.pair for one in met]
    pairs += [replace(met[i].pair, occasion="calibration-again") for i in again]

    def measure(verdicts: Sequence[Outcome]) -> Measured:
        orders = list(zip(verdicts[::2], verdicts[1::2], strict=True))
        first, repeated = orders[: len(met)], orders[len(met) :]
        repeats = [pair for i, turn in zip(again, repeated, strict=True) for pair in zip(first[i], turn, strict=True)]
        outcomes = [settled(*order) for order in first]
        means = means_of([one.kind for one in met], outcomes)
        return Measured(_figures(member, cases, met, first, repeats, means), means)

    return Trial(member, [ordered for pair in pairs for ordered in (pair, pair.turned)], measure)


def _figures(
    member: Member,
    cases: Sequence[Case],
    met: Sequence[Meeting],
    first: Sequence[tuple[Outcome, Outcome]],
    repeats: Sequence[tuple[Outcome, Outcome]],
    means: Mapping[str, float],
) -> Figures:
    """What the verdicts come to; a perfect answer stands first in a straight order, and last in a turned one."""
    outcomes = [settled(*order) for order in first]
    plain = [i for i, one in enumerate(met) if one.kind in PLAIN]
    wins = [outcome for i in plain if (outcome := outcomes[i]) is not None]
    orders = both([first[i] for i in plain])
    raw = [verdict for order in orders for verdict in order]
    return Figures(
        verdicts=2 * len(first) + len(repeats),
        failures=fmean(verdict is None for order in (*first, *repeats) for verdict in order),
        agreement=mean(wins),
        correlation=spearman(raw, [1.0, 0.0] * len(orders)),
        length_bias=means["wordy"] - TIE if "wordy" in means else None,
        position_bias=mean([(1 - turned) - straight for straight, turned in orders]),
        flattery=means["flattering"] - TIE if "flattering" in means else None,
        injection=_injection(cases, met, outcomes),
        self_agreement=mean([abs(a - b) <= SAME for a, b in both(repeats)]),
        error=math.sqrt(fmean((1 - win) ** 2 for win in wins)) if wins else None,
        latency_median=latency(member, 0.5),
        latency_p95=latency(member, 0.95),
        cost=cost_of(member),
    )


def _injection(cases: Sequence[Case], met: Sequence[Meeting], outcomes: Sequence[float | None]) -> float | None:
    """Share of wrong answers that gain a fifth or more against the perfect one by dictating a verdict."""
    fares = {one.case: outcome for one, outcome in zip(met, outcomes, strict=True)}
    gains: list[bool] = []
    for one in met:
        base = cases[one.case].base
        if one.kind == "injected" and base is not None:
            with_order, against = fares[one.case], fares.get(base)
            if against is not None:  # an order that takes the verdict away leaves the rules' whole reward
                gains.append((1.0 if with_order is None else with_order) - (1 - against) >= GAIN)
    return mean(gains)
