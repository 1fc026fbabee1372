"""The report in another language: its own words are exchanged in the finished page, whatever a run wrote stays.

A page is made in English.  Translated is what stands between tags and in attributes that are read out, and the words of
charts; not the contents of ``pre``, ``code``, ``script`` and ``style``, which hold what a policy wrote, the recipe, and
the drawing library, and no name of a task, a stratum or a metric.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from levelhead import metrics as metric
from levelhead.diagnosis.chinese import Words, exchanged
from levelhead.diagnosis.chinese import own_words as words_of_runs
from levelhead.diagnosis.findings import Language, Text, read_texts
from levelhead.diagnosis.verdict import said
from levelhead.documents.yaml_text import load_yaml
from levelhead.report.reading import Run
from levelhead.report.scores import stages_of, strata_names, verdict_of

OUTLOOK = Path(__file__).with_name("outlook.yaml")
"""Sentences of the first screen in both languages."""

_PIECE = re.compile(
    r"(?P<kept><(?P<name>pre|code|script|style)\b.*?</(?P=name)>)|(?P<tag><[^>]*>)|(?P<text>[^<]+)",
    re.DOTALL | re.IGNORECASE,
)
_HTML = re.compile(r'<html lang="en">')
_SPOKEN = re.compile(r' (title|placeholder|aria-label)="([^"]*)"')
_HOVER = re.compile(r"(?P<words>.*?)(?P<rest>:? ?%\{.*)?(?P<end><extra></extra>)", re.DOTALL)
_WORDS_OF_A_CHART = frozenset(("name", "ticksuffix", "text", "y", "categoryarray", "customdata"))
"""Keys of a figure whose texts a reader sees; the groups of its legend are names for the script."""


class Translator:
    """Exchanges a page's own words.

    Args:
        language: Of the reader.
        names: What a run calls its tasks, strata and metrics; they stay.
        sentences: What this run says in English, in the reader's language.
    """

    def __init__(
        self, language: Language, names: Collection[str] = (), sentences: Mapping[str, str] | None = None
    ) -> None:
        self.language: Language = language
        self._names, self._sentences = frozenset(names), dict(sentences or {})

    def page(self, page: str) -> str:
        """Return a page of HTML, made in English; a text without a translation stays as it is."""
        if self.language == "en":
            return page
        page = _HTML.sub(f'<html lang="{self.language}">', page, count=1)
        return _PIECE.sub(self._piece, page)

    def text(self, text: str) -> str:
        """Return a piece of text; as it is where it has no translation."""
        return text if self.language == "en" else exchanged(text, self._look)

    def _look(self, text: str) -> str | None:
        if text in self._names:
            return text
        if text in self._sentences:
            return self._sentences[text]
        own = own_words().get(text, self.text)
        return words_of_runs().get(text, self.text) if own is None else own

    def figure(self, value: Any, key: str = "") -> Any:
        """Return the data of a chart with its words exchanged: names of curves, what a pointer shows, axis titles."""
        if self.language == "en":
            return value
        if isinstance(value, Mapping):
            return {name: self.figure(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.figure(inner, key) for inner in value] if key in _WORDS_OF_A_CHART or _nested(value) else value
        if not isinstance(value, str):
            return value
        if key == "hovertemplate" and (match := _HOVER.fullmatch(value)):
            words, rest = match["words"], match["rest"] or ""
            return f"{self.text(words) if words else ''}{rest}{match['end']}"
        return self.text(value) if key in _WORDS_OF_A_CHART else value

    def _piece(self, piece: re.Match[str]) -> str:
        if piece["text"] is not None:
            return self._escaped(piece["text"])
        if piece["tag"] is not None:
            return _SPOKEN.sub(lambda match: f' {match[1]}="{self._escaped(match[2])}"', piece["tag"])
        return piece["kept"]

    def _escaped(self, escaped: str) -> str:
        text = html.unescape(escaped)
        bare = text.strip()
        words = self.text(bare) if bare else bare
        return escaped if words == bare else html.escape(text.replace(bare, words, 1), quote=True)


def say(key: str, language: Language, /, **values: object) -> str:
    """Return a sentence of the first screen with its values."""
    return _outlook()[key].get(language).format(**values)


@cache
def own_words() -> Words:
    """Return the report's own words in Chinese: by whole phrase, and by pattern with a ``{}`` for each group."""
    data = load_yaml(files("levelhead.report").joinpath("chinese.yaml").read_text(encoding="utf-8"))
    assert isinstance(data, dict)  # noqa: S101 - our own file
    return Words(data)


@cache
def _outlook() -> Mapping[str, Text]:
    return read_texts(OUTLOOK, "words")


def _nested(values: list[Any]) -> bool:
    return bool(values) and isinstance(values[0], Mapping | list)


def translator_of(run: Run, language: Language) -> Translator:
    """Return what exchanges the words of a run's page."""
    if language == "en":
        return Translator(language)
    events = {str(event.get("message")): str(event["message_zh"]) for event in run.events if "message_zh" in event}
    return Translator(language, _names(run), {**events, **_checks(run, language), **_verdicts(run, language)})


def _names(run: Run) -> set[str]:
    """Names of tasks, strata, metrics, parts of rewards, events and checks."""
    names = set(run.tasks)
    # A name of one word may be a word of ours as well; as a metric's it stands in no sentence.
    names |= {key for row in run.metrics for key in row if not key.isalpha()}
    names |= {key.split("/")[-2] for key in names if key.startswith(metric.PART_MEAN.prefix) and key.count("/") > 1}
    for entry in run.summary_tasks.values():
        stages = stages_of(entry)
        strata = strata_names(stages)
        # A table lets a stratum break behind its sign of equality, so that its value stands alone.
        names |= {*strata, *(part for name in strata for part in name.partition("="))}
        names |= {name for stage in stages for name in stage.metrics}
    return names | {str(row.get(key)) for rows, key in ((run.events, "code"), (run.checks, "name")) for row in rows}


def _checks(run: Run, language: Language) -> dict[str, str]:
    """What checks said, and what they advised."""
    # Imported late: a page in English needs no checks, and the light install has not all that they import.
    from levelhead.preflight.explain import stored

    sentences: dict[str, str] = {}
    for check in run.checks:
        english = str(check.get("message") or ""), str(check.get("fix") or "")
        sentences |= {a: b for a, b in zip(english, stored(check, language), strict=True) if a}
    return sentences


def _verdicts(run: Run, language: Language) -> dict[str, str]:
    verdicts = {task: verdict_of(run.summary, task) for task in run.summary_tasks}
    return {
        verdict.text: said(verdict.text, run.summary_tasks[task], language)
        for task, verdict in verdicts.items()
        if verdict is not None
    }
