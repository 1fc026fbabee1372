"""Detectors that know more than the log: the run's settings, its answers as text, and what a person was asked.

Each such fact is an argument for or against a finding, beside those from the log; some stand alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors import DETECTORS, Detector
from levelhead.diagnosis.detectors.base import Candidate, View
from levelhead.diagnosis.history import History
from levelhead.diagnosis.notice import printable
from levelhead.doctor.readers.statements import Statement
from levelhead.doctor.rollouts import RolloutFacts
from levelhead.doctor.runconfig import (
    GROUP_SIZE,
    KL_COEF,
    LEARNING_RATE,
    LORA,
    MAX_LENGTH,
    TEMPERATURE,
    RunSettings,
)

TEXT_SAYS = "text-says"
"""Key of the argument that the text itself names a fault."""
_LEAST = 0.05
# Log-odds of a fault that the author of a text names; set by hand.
_STATED = 2.9
_STATED_AGAIN = 0.4  # for each further line that does,
_STATED_MOST = 4  # at most so many
_STATED_ABOVE = 0.6  # for a heading, or words in bold
_STATED_BUT_RISES = 1.5  # less where the reward rises


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument from outside the log.

    Attributes:
        code: The finding.
        weight: In log-odds.
        key: Of its wording.
        numbers: That the wording quotes.
        alone: Raises the finding where nothing in the log does.
    """

    code: str
    weight: float
    key: str
    numbers: Mapping[str, float | str]
    alone: bool = False


class Informed:
    """Asks the detectors, and adds what is known beside the log.

    Args:
        arguments: What is known.
        detectors: Whom to ask.
    """

    def __init__(self, arguments: Sequence[Argument], detectors: Sequence[Detector] = DETECTORS) -> None:
        self._arguments = [argument for argument in arguments if abs(argument.weight) >= _LEAST]
        self._detectors = detectors

    @property
    def codes(self) -> tuple[str, ...]:
        """Findings it may raise."""
        return tuple(dict.fromkeys(code for detector in self._detectors for code in detector.codes))

    def examine(self, view: View) -> Iterable[Candidate]:
        """The detectors' candidates with the further arguments, and those that stand alone."""
        candidates = [s for detector in self._detectors for s in detector.examine(view)]
        for candidate in candidates:
            if candidate.evidence:
                for argument in self._arguments:
                    if argument.code == candidate.code:
                        candidate.add(argument.weight, argument.key, **argument.numbers)
        raised = {s.code: s for s in candidates if s.evidence}
        stated = {a.code for a in self._arguments if a.key == TEXT_SAYS}
        for code in dict.fromkeys(a.code for a in self._arguments if a.alone and a.weight > 0):
            # What the text states holds even where its few rows alone would not show it.
            if code not in raised or code in stated:
                seen = raised.get(code, Candidate(code))
                step = seen.first_step if seen.log_odds > 0 else None
                case = Candidate(code, first_step=step, readings=list(seen.readings))
                for argument in self._arguments:
                    if argument.code == code:
                        case.add(argument.weight, argument.key, **argument.numbers)
                candidates.append(case)
        return candidates


def place(history: History, settings: RunSettings) -> None:
    """Give the history the settings that detectors look for as signals, where the log has none of its own."""
    for name in (GROUP_SIZE, LEARNING_RATE):
        if name in settings.values and not len(history.series(name)) and history.rows:
            for step in sorted({history.first_step, history.last_step}):
                column = history.columns.setdefault(name, history.series(name))
                column.append(step, settings.values[name], history.capacity)


def from_settings(settings: RunSettings, view: View) -> Iterator[Argument]:
    """What the settings say for and against findings."""
    values = settings.values

    def said(code: str, weight: float, name: str, alone: bool = False) -> Argument:
        return Argument(code, weight, "setting", {"name": settings.keys[name], "value": values[name]}, alone)

    rate = values.get(LEARNING_RATE)
    if rate is not None:
        # Adapters are trained at some ten times the rate of all weights.
        high = (-3.7, -2.7) if LORA in values else (-5.0, -3.7)
        yield said("lr-too-high", 3.0 * stats.ramp(stats.log10(max(rate, 1e-12)), *high), LEARNING_RATE, alone=True)
        if rate <= 1e-9:
            yield said("no-improvement", 2.5, LEARNING_RATE, alone=True)
    warmth = values.get(TEMPERATURE)
    if warmth is not None:
        yield said("reward-dead-groups", 3.2 * stats.ramp(warmth, 0.4, 0.05), TEMPERATURE, alone=True)
        yield said("entropy-explosion", 1.2 * stats.ramp(warmth, 1.1, 1.5), TEMPERATURE)
        yield said("logprob-mismatch", 1.0 * stats.ramp(abs(warmth - 1), 0.1, 0.4), TEMPERATURE)
    beta = values.get(KL_COEF)
    if beta is not None:
        yield said("kl-blowup", 0.5 if beta == 0 else 0.0, KL_COEF)
        yield said("no-improvement", 0.8 * stats.ramp(beta, 0.1, 0.5), KL_COEF)
    if GROUP_SIZE in values:
        yield said("group-size-too-small", 0.9 if values[GROUP_SIZE] <= 3 else -3.0, GROUP_SIZE)
        yield said("reward-dead-groups", 0.8 * stats.ramp(values[GROUP_SIZE], 6, 2), GROUP_SIZE)
    limit = values.get(MAX_LENGTH)
    if limit:
        yield from _length(view, limit, said)


def _length(view: View, limit: float, said: Callable[..., Argument]) -> Iterator[Argument]:
    """How the longest and the usual answers stand to the limit."""
    top = view.series(metric.MAX_LENGTH)
    mean = view.series(metric.MEAN_LENGTH)
    if len(top) and max(top.values) < 0.9 * limit:
        yield said("length-truncation", -2.5, MAX_LENGTH)
        yield said("eos-never", -2.5, MAX_LENGTH)
    if len(mean):
        share = stats.median(mean.values[-max(1, len(mean) // 4) :]) / limit
        weight = 3.4 * stats.ramp(share, 0.75, 0.98)
        yield Argument("length-truncation", weight, "near-limit", {"share": share, "limit": limit}, alone=True)


def from_statements(statements: Mapping[str, Statement], view: View) -> Iterator[Argument]:
    """What the text itself says is wrong, weighed against a reward that rises all the same."""
    for code, statement in statements.items():
        weight = _STATED + _STATED_AGAIN * min(statement.lines - 1, _STATED_MOST) + _STATED_ABOVE * statement.headed
        numbers: dict[str, float | str] = {
            "quote": printable(statement.quote),
            "line": statement.line,
            "lines": statement.lines,
        }
        yield Argument(code, weight - _STATED_BUT_RISES * view.reward_trend.learned, TEXT_SAYS, numbers, alone=True)


def from_rollouts(facts: RolloutFacts) -> Iterator[Argument]:
    """What the answers say, read as text."""

    def seen(code: str, weight: float, key: str, share: float) -> Argument:
        return Argument(code, weight, f"answers-{key}", {"share": share, "count": facts.count}, alone=True)

    yield seen("constant-answer", 4.4 * stats.ramp(facts.constant, 0.3, 0.8), "constant", facts.constant)
    yield seen("reward-dead-groups", 3.6 * stats.ramp(facts.alike, 0.4, 0.9), "all-alike", facts.alike)
    yield seen("eos-never", 1.6 * stats.ramp(facts.repeating, 0.1, 0.5), "repeating", facts.repeating)
    yield seen("length-runaway", 3.6 * stats.ramp(facts.repeating, 0.05, 0.4), "repeating", facts.repeating)
    yield seen("length-truncation", 4.0 * stats.ramp(facts.cut, 0.08, 0.4), "cut", facts.cut)
    yield seen("template-mismatch", 4.2 * stats.ramp(facts.template, 0.03, 0.4), "template", facts.template)
    yield seen("entropy-explosion", 3.2 * stats.ramp(facts.mixed, 0.05, 0.4), "mixed", facts.mixed)
    yield seen("catastrophic-update", 3.4 * stats.ramp(facts.empty, 0.2, 0.8), "empty", facts.empty)
    if facts.cut < 0.02 and facts.count >= 16:
        yield Argument("length-truncation", -2.0, "answers-whole", {"count": facts.count})
