"""Sentences: numbers in them ("KL jumped to 3e4 at step 40"), and the faults that their author names.

Such readings count only where a text holds no others: prose beside a log tells of it, and is no second log.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from levelhead.doctor.readers.base import Row, Translator
from levelhead.doctor.readers.places import FIRST, LAST
from levelhead.documents import load_own


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CLAUSE = re.compile(r"(?<=[a-z0-9%)])[.;!?](?=\s|$)|,\s+(?:and then|then|while|but|whereas)\s|\s[—\u2013]\s|\n", re.I)
_TOKEN = re.compile(
    r"(?P<number>[-+\u2212~≈<>]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w@])\s?%?|\bnan\b|\binf(?:inity)?\b)"
    r"|(?P<word>[A-Za-z_|][\w@./|()-]*)",
    re.I,
)
_STEP_WORDS = frozenset(("step", "steps", "iteration", "iter", "update"))
_JOIN = _words(
    "to is was at of reached hit hits about around roughly approximately near only just nearly stays stayed stands "
    "stood equals remains remained becomes became and still already up down over under from now has have been be a an "
    "the as sank shrank swung slid crept shot blew jumps fell falls rose rises dropped drops climbed exploded "
    "collapsed went goes grew spiked increased decreased averages averaging value values high low between with stuck "
    "flat constant exactly converged sits sat goes going until"
)
"""Words that may stand between a name and its number."""
_MAX_WORDS = 5
_MAX_LINE = 4000
_STEMS = re.compile(
    r"reward|\bkl\b|kl_|entropy|grad|loss|length|trunc|clip|zero|dead|accura|pass@|std|learning rate|\blr\b|valid|scor",
    re.I,
)
_NAKED = _words(
    "time h error errors len it valid score scores length tokens trunc dead steps step grad clipped "
    "truncated ent h rm pg ret seconds secs sec dt rewards update episode beta format success solved "
    "correct corr parsed iter ep epoch test val eval"
)
"""Names in a table that are mere words in a sentence."""


@dataclass(slots=True)
class _Name:
    """A signal named in a clause, and where."""

    raw: str
    start: int
    end: int


def sentences(text: str, number: int, translator: Translator) -> list[Row]:
    """The readings of a line of prose: a row a reading, with its step or statistic."""
    if len(text) > _MAX_LINE or not _STEMS.search(text):
        return []
    return [
        row
        for clause in _CLAUSE.split(text)
        if clause and _STEMS.search(clause)
        for row in _clause(clause, number, translator)
    ]


def _clause(clause: str, number: int, translator: Translator) -> list[Row]:
    tokens = list(_TOKEN.finditer(clause))
    step, used = _step(tokens)
    rows: list[Row] = []
    names = _names(tokens, clause, translator)
    for i, name in enumerate(names):
        stop = names[i + 1].start if i + 1 < len(names) else len(tokens)
        numbers = [j for j in range(name.end, stop) if tokens[j].group("number") and j not in used]
        if not numbers or not _joined(tokens, name.end, numbers[0]):
            continue
        rows += _readings(name.raw, tokens, numbers, step, number, translator)
    return rows


def _readings(
    raw: str, tokens: list[re.Match[str]], numbers: list[int], step: float | None, line: int, translator: Translator
) -> list[Row]:
    first = numbers[0]
    change = (
        len(numbers) > 1
        and tokens[first - 1].group().lower() == "from"
        and tokens[numbers[1] - 1].group().lower() == "to"
    )
    if not change:
        return _row(raw, tokens[first].group(), step, "", line, translator)
    rows = _row(raw, tokens[first].group(), None, FIRST, line, translator)
    return rows + _row(raw, tokens[numbers[1]].group(), None, LAST, line, translator)


def _row(raw: str, value: str, step: float | None, statistic: str, line: int, translator: Translator) -> list[Row]:
    pairs: list[tuple[str, Any]] = [(raw, value.lstrip("~≈<>"))]
    row = translator.row(pairs, line, least=0)
    return [Row(step, row.values, None, line, statistic)] if row else []


def _step(tokens: list[re.Match[str]]) -> tuple[float | None, set[int]]:
    """The step that the clause names, and the tokens that spell places and not readings."""
    step: float | None = None
    used: set[int] = set()
    for i, token in enumerate(tokens[:-1]):
        if token.group().lower() in (*_STEP_WORDS, "epoch") and tokens[i + 1].group("number"):
            used.add(i + 1)
            value = tokens[i + 1].group().replace(",", "")
            if step is None and token.group().lower() != "epoch" and value.isdigit():
                step = float(value)
        if token.group("number") and tokens[i + 1].group().lower() in _STEP_WORDS:
            used.add(i)
    return step, used


def _names(tokens: list[re.Match[str]], clause: str, translator: Translator) -> list[_Name]:
    names: list[_Name] = []
    i = 0
    while i < len(tokens):
        for n in range(min(_MAX_WORDS, len(tokens) - i), 0, -1):
            if any(tokens[j].group("number") for j in range(i, i + n)):
                continue
            raw = clause[tokens[i].start() : tokens[i + n - 1].end()]
            if _is_name(raw, translator):
                names.append(_Name(raw, i, i + n))
                i += n - 1
                break
        i += 1
    return names


def _is_name(raw: str, translator: Translator) -> bool:
    lowered = raw.lower()
    words = lowered.split()
    if lowered in _NAKED or words[0] in _JOIN or words[-1] in _JOIN or not _STEMS.search(lowered):
        return False
    target = translator.keys.lookup(raw)
    return target is not None and target.confidence >= 0.8 and target.name not in ("step", "epoch")


def _joined(tokens: list[re.Match[str]], start: int, end: int) -> bool:
    """Whether nothing but words of connection stands between a name and its number."""
    between = [token.group().lower() for token in tokens[start:end]]
    return len(between) <= 8 and all(word in _JOIN or word.endswith(("ly", "ed", "ing")) for word in between)


TABLE = Path(__file__).with_name("statements.yaml")
"""Expressions by finding."""
_HINT = re.compile(
    "sign|deadlock|loss|scor|accura|eval|clip|garbled|repeat|!!!|game|gaming|eos|identical|dead|signal|variance|advantage|gradient|stuck|fail|template|header|eot|prompt|mask|padding|"
    "updates?|collaps|group|reward|hack|improv|learning|better|length|trunc|cut off|limit|entropy|kl|grad|lr|logprob|"
    "mismatch|exploit|policy|always|hang|hung|freez|empty|[\u4e00-\u9fff\uac00-\ud7a3]",
    re.IGNORECASE,
)
_LONGEST = 600
"""Characters of a line of prose that is looked at."""
_MOST_LINES = 4000
_QUOTED = 120
_APART = 40
"""Characters between a subject and its change, none of which begin another subject or clause,"""
_JOINED = r"[^|\u3002]{0,60}?"
"""and between two clauses of which each has both."""
_LETTERS = 4
"""Letters of a line that says something."""


@dataclass(slots=True)
class Statement:
    """A fault that a text names.

    Attributes:
        quote: The first line that names it.
        line: Its number.
        lines: How many lines do.
        headed: Whether a heading, or a line in bold, is among them.
    """

    quote: str
    line: int
    lines: int = 1
    headed: bool = False


@functools.cache
def _expressions() -> tuple[re.Pattern[str], re.Pattern[str], Mapping[str, re.Pattern[str]]]:
    table = load_own(TABLE)
    hedges, denied = (re.compile(table.pop(name), re.IGNORECASE) for name in ("hedges", "denied"))
    subjects, changes, nouns, read, other = map(table.pop, ("subjects", "changes", "nouns", "read", "other"))
    # A change is the last subject's that is named before it.
    within = rf"(?:(?!{other})(?:[^.|;,\u3002\uff1b\uff0c]|\.\d)){{0,{_APART}}}?"

    def clause(words: str) -> str:
        subject, names = words.split()
        ways, ahead = ("|".join(said[name] for name in names.split("/") if name in said) for said in (changes, nouns))
        after = rf"(?:{subjects[subject]}){within}(?<![a-z](?=[a-z]))(?:{ways})"
        return rf"{after}|\b(?:{ahead}) (?:in|of) (?:the |its )?(?:{subjects[subject]})" if ahead else after

    for code, rules in read.items():
        table.setdefault(code, []).extend(
            _JOINED.join(map("(?:{})".format, map(clause, rule.split(", ")))) for rule in rules
        )
    return (
        hedges,
        denied,
        {code: re.compile("|".join(f"(?:{one})" for one in ones), re.I) for code, ones in table.items()},
    )


@dataclass(slots=True)
class Statements:
    """Faults named so far, by finding; at most a few thousand lines are looked at."""

    by_code: dict[str, Statement] = field(default_factory=dict)
    _lines: int = 0

    def take(self, text: str, number: int) -> None:
        """Look at a line: prose, a heading, or a row of a table with words in it."""
        if self._lines >= _MOST_LINES or not 4 < len(text) <= _LONGEST or text[:1] in "{}'" or not _HINT.search(text):
            return
        if sum(map(str.isalpha, text)) < _LETTERS or 2 * sum(map(str.isdigit, text)) > len(text):
            return
        self._lines += 1
        hedges, denied, expressions = _expressions()
        plain = text.replace("*", "").replace("`", "")
        for code, expression in expressions.items():
            match = expression.search(plain)
            if match is None or hedges.search(plain[: match.start()]) or denied.search(plain[match.end() :]):
                continue
            headed = text.lstrip().startswith("#") or "**" in text
            if code in self.by_code:
                self.by_code[code].lines += 1
                self.by_code[code].headed |= headed
            else:
                self.by_code[code] = Statement(plain.strip(" #|-")[:_QUOTED], number, 1, headed)
