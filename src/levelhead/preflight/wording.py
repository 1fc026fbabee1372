"""Texts of prompts, made comparable: what two rows have in common but for case, white space, options or numbers."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from levelhead.records import Prompt
from levelhead.tasks.mutations import OPTION

SHINGLE = 5
"""Words of a shingle (Broder 1997)."""
_MARKS = r"[\"'`*_.,;:!?()\[\]…、。「」『』“”‘’]+"
_EDGE = re.compile(rf"(?<!\w){_MARKS}|{_MARKS}(?!\w)")
_FIRST = re.compile(r"(?:^|\s)[(（]?[Aa1][)）.:：]\s")
_BULLET = re.compile(r"^\s*[-*•]\s+(.+)$", re.MULTILINE)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def asked(prompt: Prompt, *, roles: bool = False) -> str:
    """Return all that a prompt says, message by message; with ``roles`` each behind who says it."""
    if not roles:
        return "\n".join(prompt.texts)
    return "\n".join(f"{message.get('role')}: {message.get('content', '')}" for message in prompt.messages)


def plain(text: str) -> str:
    """Return a text without case, repeated white space and the marks at the edges of words (``3.5`` stays)."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(_EDGE.sub(" ", folded).split())


def reordered(text: str) -> str | None:
    """Return a text with its lettered or listed options in alphabetical order; ``None`` where it lists none."""
    if len(lines := _BULLET.findall(text)) > 1:
        return plain(_BULLET.sub(" ", text)) + " | " + " | ".join(sorted(plain(line) for line in lines))
    if not _FIRST.search(text):
        return None
    options = [match["said"] for match in OPTION.finditer(text)]
    if len(options) < 2:
        return None
    stem = OPTION.sub(" ", text)
    return plain(stem) + " | " + " | ".join(sorted(plain(option) for option in options))


def numberless(text: str) -> str:
    """Return a plain text with each number replaced by one mark: its template."""
    return _NUMBER.sub("#", text)


def shingles(text: str) -> set[int]:
    """Return the hashes of all runs of five words of a plain text."""
    words = text.split()
    return {hash(tuple(words[i : i + SHINGLE])) for i in range(len(words) - SHINGLE + 1)}


def common(rows: Sequence[set[int]], share: float) -> set[int]:
    """Return the shingles that stand in more than a share of the rows, and in three at least: template, and no text."""
    counts = Counter(itertools.chain.from_iterable(rows))
    return {shingle for shingle, count in counts.items() if count > max(2.0, share * len(rows))}
