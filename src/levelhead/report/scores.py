"""Held-out results as ``summary.json`` has them, by stage and stratum, and where a policy stands at the end.

Whatever is missing or malformed is absent here: summaries of older runs hold neither strata nor a constant answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from levelhead.diagnosis.verdict import ERRORS, RATES, Outcome, Verdict, compare, judge
from levelhead.metrics import held_out
from levelhead.report.reading import EVAL_STAGES, Run
from levelhead.report.series import number

TELLING = (held_out.ACCURACY, held_out.EXACT_MATCH, held_out.QUOTED, held_out.ABSTAINED, held_out.SUCCESS)
"""Metrics of a stratum that say how its score came about, in the order in which they are shown."""

CLEAR = ERRORS
"""Standard errors beyond which a difference counts as more than luck."""


@dataclass(frozen=True, slots=True)
class Score:
    """A mean with its standard error.

    Attributes:
        value: The mean.
        se: Its standard error; ``None`` where it is not known.
    """

    value: float
    se: float | None = None

    @property
    def errors(self) -> float | None:
        """The mean in standard errors; ``None`` where these are unknown or nothing."""
        return self.value / self.se if self.se else None

    def beside(self, other: Score) -> Score:
        """Return the difference to another score, taken as independent of this one."""
        return Score(self.value - other.value, math.hypot(self.se or 0.0, other.se or 0.0) or None)


@dataclass(frozen=True, slots=True)
class Stage:
    """One task after one stage, or one stratum of it: the prompts of one kind.

    Attributes:
        name: ``start``, ``sft`` or ``grpo``; ``condition=ambig`` of a stratum.
        score: Mean reward over all items.
        n: Items.
        validity: Share of answers that parsed.
        length: Mean tokens of an answer.
        metrics: The task's own numbers.
        balanced: Mean score over strata; where there are none, it is the score.
        strata: By name, in the file's order.
        constant: Score of the best constant answer; ``None`` where none was tried.
        answer: Its text.
        over_constant: Score above it, paired over items.
        over_balanced: The same where each stratum counts alike.
    """

    name: str
    score: Score
    n: int | None = None
    validity: float | None = None
    length: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    balanced: Score | None = None
    strata: Mapping[str, Stage] = field(default_factory=dict)
    constant: Score | None = None
    answer: str = ""
    over_constant: Score | None = None
    over_balanced: Score | None = None

    @property
    def baseline(self) -> Score | None:
        """What a constant answer gets, on the scale of :attr:`main`; ``None`` where that was not measured."""
        if self.balanced is None or self.over_balanced is None:
            return self.constant
        return Score(self.balanced.value - self.over_balanced.value, self.constant.se if self.constant else None)

    @property
    def main(self) -> Score:
        """What a verdict speaks of: the balanced score, or the score where there is none."""
        return self.balanced or self.score


def stages_of(stages: object) -> list[Stage]:
    """Return the stages of a task that have a score, in order."""
    if not isinstance(stages, Mapping):
        return []
    return [stage for name in EVAL_STAGES if (stage := stage_of(name, stages.get(name))) is not None]


def stage_of(name: str, row: object) -> Stage | None:
    """Return one result of a task; ``None`` where it has no score."""
    score = _score(row)
    if score is None or not isinstance(row, Mapping):
        return None
    constant, over = row.get("constant"), row.get("over_constant")
    answer = constant.get("answer") if isinstance(constant, Mapping) else None
    return Stage(
        name,
        score,
        _count(row.get("n")),
        number(row.get("validity")),
        number(row.get("length")),
        _metrics(row.get("metrics")),
        _score(row.get("balanced")),
        _strata(row.get("strata")),
        _score(constant),
        answer if isinstance(answer, str) else "" if answer is None else str(answer),
        _score(over),
        _score(over.get("balanced")) if isinstance(over, Mapping) else None,
    )


def verdict_of(summary: Mapping[str, Any], task: str) -> Verdict | None:
    """Return the verdict on a task; ``None`` where the run has none (it did not end, or is of an older version)."""
    tasks, verdicts = summary.get("tasks"), summary.get("verdict")
    own = tasks.get(task) if isinstance(tasks, Mapping) else None
    verdict = own.get("verdict") if isinstance(own, Mapping) else None
    if verdict is None and isinstance(verdicts, Mapping):
        verdict = verdicts.get(task)
    if not isinstance(verdict, Mapping) or not isinstance(verdict.get("text"), str):
        return None
    outcome = next((one for one in get_args(Outcome) if one == verdict.get("outcome")), None)
    if outcome is None:  # of a version that told only whether a task improved
        outcome = "improved" if verdict.get("improved") is True else _judged_again(own)
    return Verdict(outcome, verdict["text"])


def _judged_again(entry: object) -> Outcome:
    try:
        verdict = judge(entry) if isinstance(entry, Mapping) else None
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):  # a damaged summary, or one made by hand
        verdict = None
    return "not improved" if verdict is None or verdict.improved else verdict.outcome


def measured(stages: Sequence[Stage]) -> Stage | None:
    """Return the last stage that was held against a constant answer; ``None`` where none was."""
    return next((stage for stage in reversed(stages) if stage.constant is not None), None)


def strata_names(stages: Sequence[Stage]) -> list[str]:
    """Return the names of the strata of all stages, in order of appearance."""
    return list(dict.fromkeys(name for stage in stages for name in stage.strata))


def telling(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Return those of the telling metrics that any of the rows holds."""
    return [name for name in TELLING if any(name in row for row in rows)]


def _score(row: object) -> Score | None:
    if not isinstance(row, Mapping):
        return None
    value = number(row.get("score"))
    return None if value is None else Score(value, number(row.get("se")))


def _strata(rows: object) -> dict[str, Stage]:
    items = rows.items() if isinstance(rows, Mapping) else ()
    return {str(name): stage for name, row in items if (stage := stage_of(str(name), row)) is not None}


def _metrics(values: object) -> dict[str, float]:
    if not isinstance(values, Mapping):
        return {}
    return {str(name): numeric_value for name, value in values.items() if (numeric_value := number(value)) is not None}


def _count(value: object) -> int | None:
    numeric_value = number(value)
    return None if numeric_value is None else int(numeric_value)


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
        if stages := stages_of(entry):
            last, before = stages[-1], stages[-2] if len(stages) > 1 else None
            strata = [_of_stratum(task, one, last, before) for one in last.strata.values()]
            rows += strata or [_of_task(task, last, before)]
    return rows


def _of_stratum(task: str, stratum: Stage, last: Stage, before: Stage | None) -> Standing:
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
