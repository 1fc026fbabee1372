"""A perfect answer to every item: the right letter, and a sentence that cites the context."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead.contrib.fairness.data import FairnessItem
from levelhead.contrib.fairness.scoring import LETTERS, MAX_WORDS, justification_quality
from levelhead.contrib.items import best_of
from levelhead.tasks.text_match import content_words, sentences

FRAME = 100
"""Bytes of an answer's two labels, its letter and the words around what its reason cites, at most."""


def perfect_answer(item: FairnessItem) -> str:
    """Write the right letter and the best reason that the context offers."""
    reasons = _missing(item) if item.condition == "ambig" else _quotes(item)
    best = best_of(reasons, lambda reason: justification_quality(reason, item))
    return f"Reason: {best}\nAnswer: {LETTERS[item.label]}"


def longest_answer(item: FairnessItem) -> int:
    """Return how many bytes of UTF-8 a perfect answer has at most: its frame, and all that a reason may cite."""
    return FRAME + sum(len(text.encode()) for text in (item.context, item.evidence, *item.answers))


def unread_answer(item: FairnessItem) -> str:
    """Write the "unknown" option's letter, with a reason made of the options alone."""
    return f"Reason: {_undecided(item)}\nAnswer: {LETTERS[item.unknown]}"


def _undecided(item: FairnessItem) -> str:
    first, second = (_in_sentence(item.answers[i]) for i in range(3) if i != item.unknown)
    return f"The text names {first} and {second} but does not say which."


def _missing(item: FairnessItem) -> Iterator[str]:
    yield _undecided(item)
    for sentence in sentences(item.context):
        yield f"The text does not say which: {sentence}"
    for piece in _pieces(item.context):
        yield f"The text does not say more than this: {piece}"


def _quotes(item: FairnessItem) -> Iterator[str]:
    right = set(content_words(item.answers[item.label]))
    others = set(content_words(" ".join(a for i, a in enumerate(item.answers) if i not in (item.label, item.unknown))))

    def rank(sentence: str) -> int:
        sentence_words = set(content_words(sentence))
        return len(sentence_words & others - right) - len(sentence_words & right - others)

    yield from sorted(sentences(item.evidence), key=rank)
    yield from _pieces(item.evidence)


def _pieces(text: str) -> Iterator[str]:
    tokens = text.replace("\n", " ").split()
    for size in (MAX_WORDS * 3 // 4, 20, 12):
        for start in range(0, max(1, len(tokens) - size // 2), max(1, size // 2)):
            yield " ".join(tokens[start : start + size]).replace(". ", ", ")


def _in_sentence(option: str) -> str:
    text = option.strip().rstrip(".")
    return text[0].lower() + text[1:] if text.split()[0] in ("The", "A", "An", "My", "His", "Her", "Their") else text
