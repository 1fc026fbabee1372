"""Comparing short texts: normalised exact match, token F1, verbatim quotes, content words.

Exact match and F1 follow SQuAD (Rajpurkar et al. 2016, the official evaluation script): lower case, no punctuation, no
articles, single spaces.  Everything here is a pure function of its arguments and works on any Unicode text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_SPACE = re.compile(r"\s+")
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
# A full stop ends a sentence before white space or a capital glued to it ("...century.First..."), unless it follows a
# single letter ("U.S.", "J. Smith") or a common abbreviation.
_SENTENCE_END = re.compile(
    r"(?<=[^\W_][^\W_][.!?])(?=[A-Z])|(?<=[.!?])[\"')\]\u201d\u2019]*\s+(?=[\"'(\[\u201c\u2018]?[^a-z\s])|\n+"
)
_ABBREVIATION = re.compile(r"(?:^|[\s(\"\u201c])(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|vs|No|e\.g|i\.e)\.$")
_FOLD = str.maketrans(
    {"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-", "\u00a0": " "}
)


class _NoPunctuation(dict[int, int | None]):
    """For ``str.translate``: takes punctuation out; what a character is, is looked up once."""

    def __missing__(self, code: int) -> int | None:
        self[code] = None if unicodedata.category(chr(code)).startswith("P") else code
        return self[code]


_NO_PUNCTUATION = _NoPunctuation()

_STOPWORDS = """
    a about after again all also although am an and any are aren't as at be because been before being both but by
    can can't cannot could couldn't did didn't do does doesn't doing don't down during each either else ever every
    few for from further had has have having he her here hers herself him himself his how i if in into is isn't it
    it's its itself just me more most my myself neither no nor not of off on once one only onto or other our out
    over own same she should so some such text than that that's the their theirs them themselves then there these
    they this those though through to too under until up upon us very was wasn't we were weren't what when where
    whether which while who whom whose why will with without would you your yours says say said states stated
    mentions mentioned passage context answer reason evidence question therefore thus since
"""
STOPWORDS = frozenset(_STOPWORDS.split())
"""Words that carry nothing of a particular text: function words, and the words answers are framed with."""


def words(text: str) -> list[str]:
    """Return the words of a text, folded in case, without punctuation and possessive endings."""
    return list(_words(text))


@lru_cache(maxsize=4096)
def _words(text: str) -> tuple[str, ...]:
    folded = text.translate(_FOLD).casefold()
    return tuple(word.removesuffix("'s") for word in _WORD.findall(folded))


def content_words(text: str) -> list[str]:
    """Return the words that are no stop words, plural and singular made alike, in order and with repeats."""
    return list(_content_words(text))


@lru_cache(maxsize=4096)
def _content_words(text: str) -> tuple[str, ...]:
    return tuple(_singular(word) for word in _words(text) if word not in STOPWORDS)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


@lru_cache(maxsize=1024)
def normalize_answer(text: str) -> str:
    """Return the text as SQuAD compares it: lower case, no punctuation, no articles, single spaces.

    A text that is nothing but articles keeps them, so that the answer "A" is not an empty answer.
    """
    folded = text.translate(_FOLD).casefold()
    bare = folded.translate(_NO_PUNCTUATION)
    short = _SPACE.sub(" ", _ARTICLE.sub(" ", bare)).strip()
    return short or _SPACE.sub(" ", bare).strip()


def exact_match(answer: str, reference: str) -> bool:
    """Whether two texts are the same once normalised, and not empty."""
    return normalize_answer(answer) == normalize_answer(reference) != ""


def token_f1(answer: str, reference: str) -> float:
    """F1 of the normalised tokens as bags, in [0, 1]; 0 where either side has none."""
    got, want = normalize_answer(answer).split(), normalize_answer(reference).split()
    common = sum((Counter(got) & Counter(want)).values())
    return 2 * common / (len(got) + len(want)) if common else 0.0


@lru_cache(maxsize=1024)
def _folded(text: str) -> str:
    return _SPACE.sub(" ", unicodedata.normalize("NFKC", text).translate(_FOLD).casefold()).strip()


def contains_quote(text: str, quote: str) -> bool:
    """Whether ``quote`` stands in ``text`` word for word.

    Case, runs of white space, the shape of quotation marks and dashes, and punctuation at the quote's two ends do not
    matter; everything inside it does.  A quote begins and ends at word boundaries, and an empty one is never contained.
    """
    needle = _folded(quote).strip(" \"'.,;:!?()[]…-")
    if not _WORD.search(needle):
        return False
    return re.search(rf"(?<![^\W_]){re.escape(needle)}(?![^\W_])", _folded(text)) is not None


def sentences(text: str) -> list[str]:
    """Split a text into sentences, also where the space between two of them is missing."""
    parts: list[str] = []
    start = 0
    for end in _SENTENCE_END.finditer(text):
        tail = text[max(start, end.start() - 12) : end.start()]
        if _ABBREVIATION.search(tail.rstrip("\"')]\u201d\u2019")):
            continue
        parts.append(text[start : end.end()])
        start = end.end()
    parts.append(text[start:])
    return [part.strip() for part in parts if _WORD.search(part)]


def repetition(tokens: list[str]) -> float:
    """Share of the tokens that repeat an earlier one, in [0, 1); 0 for no tokens."""
    return 1 - len(set(tokens)) / len(tokens) if tokens else 0.0
