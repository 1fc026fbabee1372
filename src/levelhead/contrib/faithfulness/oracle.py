"""A perfect answer to every item: the right answer, and the best quote that the text offers."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead.contrib.faithfulness.data import UNKNOWN, FaithfulnessItem
from levelhead.contrib.faithfulness.scoring import MAX_WORDS, evidence_quality
from levelhead.contrib.items import best_of
from levelhead.tasks.text_match import contains_quote, content_words, sentences

FRAME = 40
"""Bytes of an answer's two labels, and of what is written where there is no answer, at most."""


def perfect_answer(item: FaithfulnessItem) -> str:
    """Write the right answer with the quote that supports it, or abstain where nothing does."""
    if not item.answerable:
        return f"Evidence: none\nAnswer: {UNKNOWN}"
    best = best_of(_quotes(item), lambda quote: evidence_quality(quote, item))
    return f"Evidence: {best}\nAnswer: {item.right}"


def longest_answer(item: FaithfulnessItem) -> int:
    """Return how many bytes of UTF-8 a perfect answer has at most: its frame, a quote and the right answer."""
    return FRAME + sum(len(text.encode()) for text in (item.text, item.right, *item.spans))


def _quotes(item: FaithfulnessItem) -> Iterator[str]:
    asked, right = set(content_words(item.question)), set(content_words(item.right))

    def rank(sentence: str) -> tuple[bool, int]:
        sentence_words = set(content_words(sentence))
        return not contains_quote(sentence, item.right), -len(sentence_words & (asked | right))

    for source in (*item.spans, item.text):
        yield from sorted(sentences(source), key=rank)
        yield source
    for source in (*item.spans, item.text):
        yield from _windows(source)


def _windows(text: str) -> Iterator[str]:
    tokens = text.split()
    for size in (30, 15, 8, 5, 3):
        if size <= MAX_WORDS:
            for start in range(0, max(1, len(tokens) - size + 1), max(1, size // 3)):
                yield " ".join(tokens[start : start + size])
