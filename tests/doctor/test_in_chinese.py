"""The doctor in Chinese: whatever the finding, its evidence and its trainer, no English but names and terms."""

from __future__ import annotations

import html
import re
from string import Formatter

import pytest

import in_chinese
from in_chinese import WORD
from levelhead.contrib.workflow.analysis import analyse
from levelhead.contrib.workflow.log import Batch
from levelhead.diagnosis.detectors.base import Evidence, Reading
from levelhead.diagnosis.findings import CATALOGUE, Language, shared_evidence, shared_remedies
from levelhead.diagnosis.history import History
from levelhead.diagnosis.ranking import Diagnosis, Finding
from levelhead.doctor.informed import QUESTIONS, line
from levelhead.doctor.page import page
from levelhead.doctor.readers.base import Unread
from levelhead.doctor.readers.sources import Log
from levelhead.doctor.render import finding_line, text
from levelhead.doctor.report import Report
from levelhead.doctor.table import LABELS, in_language
from levelhead.terminal import columns

TERMS = {
    "on", "policy", "sqrt", "CAGrad", "batch", "simulate", "reward", "entropy", "kl", "loss", "trl", "verl", "log",
    "seed", "doctor", "hacking", "levelhead", "train", "check", "estimator", "Grade", "N", "k", "k3", "clip", "beta",
    "KEY", "VALUE", "unknown", "step", "debug", "resume", "RUN", "tasks", "path", "guard", "rollouts",
    "CPU", "GPU", "AdamW",
}  # fmt: skip
"""Further terms, commands, and names of metrics of one word."""
QUOTED = re.compile(r"\[[^\[\]]*\d{4}[^\[\]]*\]|`[^`]*`")
"""A paper with its year, and code."""


def filled(words: str) -> dict[str, float | str]:
    """Numbers for the places of a wording."""
    places = [(name, form) for _, name, form, _ in Formatter().parse(words) if name]
    return {name: 0.5 if form else "a_name" for name, form in places}


def settings_words() -> set[str]:
    """Keys and values of all remedies that are names, whatever the trainer."""
    remedies = [*shared_remedies().values(), *(r for entry in CATALOGUE.values() for r in entry.remedies)]
    pairs = [pair for r in remedies for family in (r.recipe, r.trl, r.verl) for pair in family.items()]
    shown = [f"{key} {value}" if isinstance(value, dict) or " " not in str(value) else key for key, value in pairs]
    return {word for text in shown for word in re.findall("[A-Za-z]+", text)}


def report_of(code: str, format_: str, sign: int) -> Report:
    """A report with one finding and every argument that it may have."""
    history = History()
    for step in range(1, 30):
        history.append(float(step), {"reward": 0.1 * step, "learning_rate": 1e-5, "completions/max_length": 64.0})
    texts = {**shared_evidence(), **CATALOGUE[code].evidence}
    evidence = tuple(Evidence(float(sign), key, filled(words.en)) for key, words in texts.items())
    finding = Finding(code, CATALOGUE[code].severity, 0.8, 3.0, (Reading("reward", 3.0, 0.5),), evidence)
    said = {"message": "no gradient for 8 steps", "message_zh": "连续 8 步没有梯度"}
    events = [{"step": 3, "code": code, "severity": "critical", "action": "rollback", **said}]
    log = Log(format_, history, Unread(), events=events)
    return Report(log, Diagnosis(finding.severity, (finding,), 29), "log")


def english(shown: str) -> set[str]:
    return in_chinese.english(QUOTED.sub("", shown), TERMS | set(CATALOGUE) | settings_words())


@pytest.mark.parametrize("code", list(CATALOGUE))
def test_no_english_word_but_names_and_terms_in_any_finding(code: str) -> None:
    for format_ in ("levelhead", "trl", "verl"):
        for sign in (1, -1):
            report = report_of(code, format_, sign)
            assert english(text(report, "zh")) <= {format_, *papers(code)}, (format_, sign)
            assert english(finding_line(report.diagnosis.findings[0], report, "zh")) == set()
            body = re.sub(r"<(style|title)>.*?</\1>", "", page(report, "zh"), flags=re.DOTALL)
            sources = re.sub(r"\[[^\]]*\]|<[^>]*>", " ", re.sub(r"<small>.*?</small>", "", body))
            assert english(html.unescape(sources)) <= {format_, *papers(code)}


def papers(code: str) -> set[str]:
    """Words of the titles of papers that a finding's remedies name."""
    return {word for remedy in CATALOGUE[code].remedies for word in WORD.findall(remedy.source)}


def test_questions_and_headings_are_chinese() -> None:
    for question in QUESTIONS.values():
        shown = line(question, "zh").replace(question.command, "")
        assert english(re.sub(r"--answer \S+", "", shown)) == set(), shown
    for key, words in LABELS.items():
        assert english(words.zh) == set(), key


def test_tables_of_workflows_are_chinese_and_their_columns_stand_below_each_other() -> None:
    analysis = analyse([Batch(1, ("done(x)", None), updated=True)])
    for table in analysis.tables():
        shown = in_language(table, "zh")
        assert english(" ".join([shown.title, *shown.header])) == set()
        second = zip(shown.lines()[1:], [shown.header[1], *(row[1] for row in shown.rows)], strict=True)
        assert len({columns(row[: row.rindex(cell)]) for row, cell in second if len(shown.header) == 2}) <= 1
        assert in_language(table, "en") == table


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_the_guard_did_is_told_in_the_readers_language(language: Language) -> None:
    shown = text(report_of("deadlock", "levelhead", 1), language)
    assert ("连续 8 步没有梯度" in shown) == (language == "zh")
    assert ("no gradient for 8 steps" in shown) == (language == "en")
    assert ("回退" in shown) == (language == "zh")
