"""What the author of a text says is wrong: sentences that name a fault, found by a table of expressions."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

TABLE = Path(__file__).with_name("statements.yaml")
"""Expressions by finding."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_HINT = re.compile(
    "sign|deadlock|identical|dead|signal|variance|advantage|gradient|stuck|fail|template|header|eot|prompt|mask|padding|"
    "updates?|collaps|group|reward|hack|improv|learning|better|length|trunc|cut off|limit|entropy|kl|grad|lr|logprob|"
    "mismatch|"
    "[\u4e00-\u9fff]",
    re.IGNORECASE,
)
_LONGEST = 600
"""Characters of a line of prose that is looked at."""
_MOST_LINES = 4000
_QUOTED = 120
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
    table = yaml.load(TABLE.read_text(encoding="utf-8"), _LOADER)  # noqa: S506 - a safe loader
    hedges, denied = (re.compile(table.pop(name), re.IGNORECASE) for name in ("hedges", "denied"))
    return (
        hedges,
        denied,
        {code: re.compile("|".join(f"(?:{one})" for one in ones), re.I) for code, ones in table.items()},
    )


@dataclass(slots=True)
class Statements:
    """Faults named so far, by finding; at most a few thousand lines are looked at."""

    found: dict[str, Statement] = field(default_factory=dict)
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
            if code in self.found:
                self.found[code].lines += 1
                self.found[code].headed |= headed
            else:
                self.found[code] = Statement(plain.strip(" #|-")[:_QUOTED], number, 1, headed)
