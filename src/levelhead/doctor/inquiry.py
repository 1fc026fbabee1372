"""What would settle an uncertain diagnosis: one or two questions, and what their answers are worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from levelhead import metrics as metric
from levelhead.diagnosis.chinese import said
from levelhead.diagnosis.findings import Language, Text
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import VERDICTS, Diagnosis
from levelhead.doctor.informed import Argument
from levelhead.doctor.readers.keys import KeyMap
from levelhead.doctor.readers.values import NotANumberError, parse_number
from levelhead.doctor.runconfig import GROUP_SIZE, KL_COEF, LEARNING_RATE, MAX_LENGTH, TEMPERATURE, RunSettings
from levelhead.errors import InputError

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


TABLE = Path(__file__).with_name("inquiry.yaml")
"""Questions, the findings that they are asked for, and what answers are worth."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TABLES = yaml.load(TABLE.read_text(encoding="utf-8"), _LOADER)  # noqa: S506 - a safe loader
QUESTIONS: dict[str, Question] = {
    key: Question(key, Text(one["en"], one["zh"]), one.get("command", ""), tuple(one.get("choices", ())))
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
            column = history.columns.setdefault(name, history.series(name))
            column.append(history.last_step, value, history.capacity)


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
    how = f" [{said(question.command, language)}]" if question.command else ""
    answer = "|".join(question.choices) or said("NUMBER", language)
    return f"{question.text.get(language)}{how} --answer {question.key}={answer}"
