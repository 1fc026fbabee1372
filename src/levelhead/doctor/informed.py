"""What is known beside the log (settings, answers as text, what a person said), and what to ask where it is not enough.

Each such fact is an argument for or against a finding, beside those from the log; some stand alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from levelhead import metrics as metric
from levelhead.diagnosis import stats
from levelhead.diagnosis.detectors import DETECTORS, Detector
from levelhead.diagnosis.detectors.base import Candidate, View
from levelhead.diagnosis.findings import Language, Text
from levelhead.diagnosis.history import History
from levelhead.diagnosis.notice import printable
from levelhead.diagnosis.ranking import VERDICTS, Diagnosis
from levelhead.doctor.readers.keys import KeyMap
from levelhead.doctor.readers.prose import Statement
from levelhead.doctor.readers.values import NotANumberError, parse_number
from levelhead.doctor.rollouts import RolloutFacts
from levelhead.doctor.runconfig import GROUP_SIZE, KL_COEF, LEARNING_RATE, LORA, MAX_LENGTH, TEMPERATURE, RunSettings
from levelhead.documents import load_own
from levelhead.errors import InputError
from levelhead.message import Phrase, in_language_of

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
        """Codes of the findings that it may raise."""
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
                history.put(name, step, settings.values[name])


def from_settings(settings: RunSettings, view: View) -> Iterator[Argument]:
    """What the settings say for and against findings."""
    values = settings.values

    def argued(code: str, weight: float, name: str, alone: bool = False) -> Argument:
        return Argument(code, weight, "setting", {"name": settings.keys[name], "value": values[name]}, alone)

    if (rate := values.get(LEARNING_RATE)) is not None:
        # Adapters are trained at some ten times the rate of all weights.
        high = (-3.7, -2.7) if LORA in values else (-5.0, -3.7)
        yield argued("lr-too-high", 3.0 * stats.ramp(stats.log10(max(rate, 1e-12)), *high), LEARNING_RATE, alone=True)
        if rate <= 1e-9:
            yield argued("no-improvement", 2.5, LEARNING_RATE, alone=True)
    if (warmth := values.get(TEMPERATURE)) is not None:
        yield argued("reward-dead-groups", 3.2 * stats.ramp(warmth, 0.4, 0.05), TEMPERATURE, alone=True)
        yield argued("entropy-explosion", 1.2 * stats.ramp(warmth, 1.1, 1.5), TEMPERATURE)
        yield argued("logprob-mismatch", 1.0 * stats.ramp(abs(warmth - 1), 0.1, 0.4), TEMPERATURE)
    if (beta := values.get(KL_COEF)) is not None:
        yield argued("kl-blowup", 0.5 if beta == 0 else 0.0, KL_COEF)
        yield argued("no-improvement", 0.8 * stats.ramp(beta, 0.1, 0.5), KL_COEF)
    if GROUP_SIZE in values:
        yield argued("group-size-too-small", 0.9 if values[GROUP_SIZE] <= 3 else -3.0, GROUP_SIZE)
        yield argued("reward-dead-groups", 0.8 * stats.ramp(values[GROUP_SIZE], 6, 2), GROUP_SIZE)
    if limit := values.get(MAX_LENGTH):
        yield from _length(view, limit, argued)


def _length(view: View, limit: float, argued: Callable[..., Argument]) -> Iterator[Argument]:
    """How the longest and the usual answers stand to the limit."""
    top = view.series(metric.MAX_LENGTH)
    mean = view.series(metric.MEAN_LENGTH)
    if len(top) and max(top.values) < 0.9 * limit:
        yield argued("length-truncation", -2.5, MAX_LENGTH)
        yield argued("eos-never", -2.5, MAX_LENGTH)
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


CERTAIN = 0.8
"""Confidence of the first finding from which nothing is asked."""
APART = 0.2
"""Lead of the first finding over the second under which the two are to be told apart."""
_MOST = 2


@dataclass(frozen=True, slots=True)
class Question:
    """One thing to find out.

    Attributes:
        key: What an answer is given under: ``--answer KEY=VALUE``.
        text: The question.
        command: How to find out, where there is more to do than to look.
        choices: The words that an answer may be; empty for a number.
    """

    key: str
    text: Text
    command: str = ""
    choices: tuple[str, ...] = ()


INQUIRY = Path(__file__).with_name("inquiry.yaml")
"""Questions, the findings that they are asked for, and what answers are worth."""
_TABLES = load_own(INQUIRY)
_NUMBER = Text("NUMBER", "数字")


def _command(value: str | Mapping[str, str]) -> str:
    """A command, or what to do in words in both languages."""
    return value if isinstance(value, str) else Phrase(value["en"], value["zh"])


QUESTIONS: dict[str, Question] = {
    key: Question(key, Text(one["en"], one["zh"]), _command(one.get("command", "")), tuple(one.get("choices", ())))
    for key, one in _TABLES["questions"].items()
}
"""Everything that may be asked, by key."""

_ASKED_FOR: dict[str, list[str]] = _TABLES["asked_for"]
_WORTH: dict[tuple[str, str], dict[str, float]] = {(one["answer"], one["is"]): one["worth"] for one in _TABLES["worth"]}
_STANDS_ALONE = 2.3
"""Weight from which an answer raises a finding that nothing in the log does."""
_SETTINGS = (GROUP_SIZE, LEARNING_RATE, KL_COEF, MAX_LENGTH, TEMPERATURE)
_ALSO = {"beta": KL_COEF, "lr": LEARNING_RATE, "max_length": MAX_LENGTH, "num_generations": GROUP_SIZE}


@dataclass(frozen=True, slots=True)
class Answers:
    """What a person said: settings, words for questions of choice, and readings of signals."""

    settings: RunSettings = field(default_factory=RunSettings)
    words: Mapping[str, str] = field(default_factory=dict)
    readings: Mapping[str, float] = field(default_factory=dict)


def read_answers(pairs: Sequence[str]) -> Answers:
    """The answers in ``key=value`` texts: questions by their key, settings, or any signal of a log by its name.

    Raises:
        InputError: A pair is none, names nothing that could be asked, or its value is not one of the choices.
    """
    settings: dict[str, float] = {}
    words: dict[str, str] = {}
    readings: dict[str, float] = {}
    for pair in pairs:
        raw, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not raw or not value:
            raise InputError(f"--answer {pair}: give KEY=VALUE, as in --answer group_size=8")
        key = _ALSO.get(raw.lower(), raw.lower())
        question = QUESTIONS.get(key)
        if question is not None and question.choices:
            if value.lower() not in question.choices:
                raise InputError(f"--answer {pair}: give one of {', '.join(question.choices)}")
            words[key] = value.lower()
        elif key in _SETTINGS:
            settings[key] = _number(pair, value)
        elif key == "perfect_reward":
            words[key] = "nothing" if _number(pair, value) == 0 else "something"
        else:
            readings[_signal(pair, raw)] = _number(pair, value)
    return Answers(RunSettings(settings, {key: key for key in settings}), words, readings)


def _signal(pair: str, raw: str) -> str:
    if raw == "logp_difference":
        return metric.LOGP_DIFFERENCE_MEAN
    target = KeyMap("text").lookup(raw)
    if target is None or target.name in ("step", "epoch"):
        raise InputError(f"--answer {pair}: {raw} is no signal, setting or question; one of {', '.join(QUESTIONS)}")
    return target.name


def _number(pair: str, value: str) -> float:
    try:
        number = parse_number(value)
    except NotANumberError:
        number = None
    if number is None:
        raise InputError(f"--answer {pair}: {value} is no number")
    return number


def worth(answers: Answers) -> Iterator[Argument]:
    """What the answers say for and against findings."""
    for key, word in answers.words.items():
        for code, weight in _WORTH.get((key, word), {}).items():
            yield Argument(code, weight, "answer", {"name": key, "value": word}, alone=weight >= _STANDS_ALONE)


def place_readings(history: History, readings: Mapping[str, float]) -> None:
    """Give the history the numbers that a person told, at its last step, where it has none of that signal."""
    for name, value in readings.items():
        if not len(history.series(name)) and history.rows:
            history.put(name, history.last_step, value)


def questions(diagnosis: Diagnosis, history: History, answered: Sequence[str]) -> list[Question]:
    """The one or two questions that would settle a diagnosis best; none where it is settled.

    Args:
        diagnosis: What has been said.
        history: The log's readings: nothing is asked that stands there.
        answered: Keys of settings and of answers that are given.
    """
    first, *others = diagnosis.findings
    close = [f for f in others if first.confidence - f.confidence < APART and f.severity != "info"]
    if first.confidence >= CERTAIN and not close:
        return []
    codes = [first.code, *(f.code for f in close[:1])]
    if first.code in VERDICTS:
        codes = [*(f.code for f in others[:1] if f.confidence > 0.3), first.code]
    keys = [key for code in codes for key in _ASKED_FOR.get(code, ())[:2]]
    open_keys = [key for key in dict.fromkeys(keys) if key not in answered and not len(history.series(key))]
    # One for each of the findings that are to be told apart.
    return [QUESTIONS[key] for key in open_keys[:_MOST]]


def line(question: Question, language: Language = "en") -> str:
    """A question in one line, with how to find out and how to answer."""
    how = f" [{in_language_of(question.command, language)}]" if question.command else ""
    answer = "|".join(question.choices) or _NUMBER.get(language)
    return f"{question.text.get(language)}{how} --answer {question.key}={answer}"
