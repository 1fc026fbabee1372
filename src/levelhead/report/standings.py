"""Where a policy stands at the end, stratum by stratum, beside what reads nothing: the best constant answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from levelhead.diagnosis.verdict import RATES, compare
from levelhead.report.reading import Run
from levelhead.report.scores import CLEAR, Score, Stage, Stratum, stages_of

NEARLY_ALL = 0.9
"""Rate of right answers from which a stratum has nothing to be told of, whatever a constant answer scores on it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One stratum of a task, or a whole task that has none.

    Attributes:
        task: Its name.
        stratum: ``condition=ambig``; empty for a whole task.
        score: At the end.
        constant: What the best constant answer scores; ``None`` where none was tried.
        over: The score above it.
        before: The score after the stage before; ``None`` where there is none.
        rate: Share of right answers; ``None`` where that was not measured.
        n: Items.
    """

    task: str
    stratum: str
    score: Score
    constant: Score | None = None
    over: Score | None = None
    before: Score | None = None
    rate: float | None = None
    n: int | None = None

    @property
    def change(self) -> Score | None:
        """The score minus that of the stage before."""
        return None if self.before is None else self.score.beside(self.before)

    @property
    def fell(self) -> bool:
        """Whether it has fallen since the stage before, beyond luck."""
        return self.change is not None and compare(self.change.value, self.change.se, self.n) == "below"

    @property
    def side(self) -> str:
        """Where it stands beside the best constant answer: above, below, level or undecided; empty where unmeasured."""
        return "" if self.over is None else compare(self.over.value, self.over.se, self.n)

    @property
    def above(self) -> bool:
        """Whether it is above the best constant answer, beyond luck."""
        return self.side == "above"

    @property
    def learnt(self) -> bool:
        """Whether it is above the best constant answer and has not fallen."""
        return self.above and not self.fell

    @property
    def at_chance(self) -> bool:
        """Whether reading would pay here and does not yet: not shown to beat the constant answer, and often wrong."""
        return self.side not in ("", "above") and (self.rate is None or self.rate < NEARLY_ALL)


def errors_of(difference: Score) -> float:
    """Return a difference in standard errors; without any error, it is beyond all luck unless it is nothing."""
    if difference.errors is not None:
        return difference.errors
    return 0.0 if not difference.value else CLEAR * (1 if difference.value > 0 else -1)


def standings(run: Run) -> list[Standing]:
    """Return where each task stands after its last stage, a stratum at a time; a task that was not scored has none."""
    rows: list[Standing] = []
    for task, entry in run.summary_tasks.items():
        stages = stages_of(entry)
        if stages:
            last, before = stages[-1], stages[-2] if len(stages) > 1 else None
            strata = [_of_stratum(task, one, last, before) for one in last.strata.values()]
            rows += strata or [_of_task(task, last, before)]
    return rows


def _of_stratum(task: str, stratum: Stratum, last: Stage, before: Stage | None) -> Standing:
    earlier = before.strata.get(stratum.name) if before is not None else None
    over = stratum.over_constant
    if over is None and stratum.constant is not None:
        over = stratum.score.beside(stratum.constant)
    return Standing(
        task,
        stratum.name,
        stratum.score,
        stratum.constant,
        over if last.constant is not None else None,
        earlier.score if earlier is not None else None,
        _rate(stratum.metrics),
        stratum.n,
    )


def _of_task(task: str, last: Stage, before: Stage | None) -> Standing:
    earlier = None if before is None else before.main
    over = last.over_balanced or last.over_constant
    return Standing(task, "", last.main, last.baseline, over, earlier, _rate(last.metrics), last.n)


def _rate(metrics: Mapping[str, float]) -> float | None:
    return next((metrics[name] for name in RATES if name in metrics), None)
