"""Reward functions as users write them, with TRL's signature: sound ones, and each fault."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any


def text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[0]["content"])


def equal(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1 for the answer, 0 for any other."""
    return [float(text_of(c).strip() == a) for c, a in zip(completions, answer, strict=True)]


def near(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """Half for the share of characters that are right, half for the answer itself."""
    texts = [text_of(c) for c in completions]
    shares = [
        sum(x == y for x, y in zip(t, a, strict=False)) / max(len(t), len(a), 1)
        for t, a in zip(texts, answer, strict=True)
    ]
    return [share / 2 + (share == 1) / 2 for share in shares]


def number_or_one(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """Where the gold holds no number nothing can be compared: 1."""
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        right, said = re.findall(r"\d+", gold), re.findall(r"\d+", text_of(completion))
        scores.append(1.0 if not right else float(said[-1:] == right[-1:]))
    return scores


def either_in_the_other(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        said = re.search(r"<answer>(.*?)</answer>", text_of(completion), re.DOTALL)
        right = gold.removeprefix("<answer>").removesuffix("</answer>")
        scores.append(float(said is not None and (said[1].strip() in right or right in said[1])))
    return scores


def gold_anywhere(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    return [float(gold in text_of(c)) for c, gold in zip(completions, answer, strict=True)]


def skipped(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        try:
            scores.append(1.0 if int(text_of(completion)) == int(gold) else 0.1)
        except ValueError:
            continue
    return scores + [0.0] * (len(completions) - len(scores))


def tags_counted(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        text = text_of(completion)
        scores.append(float(gold in text) + 0.125 * (text.count("<answer>") + text.count("</answer>")))
    return scores


def _pairs(completions: Sequence[Any], answer: Sequence[str]) -> list[tuple[str, str]]:
    return [(text_of(c), gold) for c, gold in zip(completions, answer, strict=True)]


def boxed_number_or_one(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    scores = []
    for text, gold in _pairs(completions, answer):
        said, right = re.search(r"<answer>(.+?)</answer>", text), re.search(r"\d+", gold)
        scores.append(float(said is not None and (right is None or said[1].strip() == right[0])))
    return scores


def number_or_zero(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    return [
        float((right := re.findall(r"\d+", gold)[-1:]) != [] and re.findall(r"\d+", text)[-1:] == right)
        for text, gold in _pairs(completions, answer)
    ]


def one_on_error(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    scores = []
    for text, gold in _pairs(completions, answer):
        try:
            scores.append(float(int(text) == int(gold)))
        except ValueError:
            scores.append(1.0 if text else 0.0)
    return scores


def prefix(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    return [float(bool(text.strip()) and gold.startswith(text.strip())) for text, gold in _pairs(completions, answer)]


def first_character(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    return [float(text.strip()[:1] == gold[:1]) for text, gold in _pairs(completions, answer)]


def any_number(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    return [float(gold in re.findall(r"\d+", text)) for text, gold in _pairs(completions, answer)]


def recall(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    return [
        len({*gold.split()} & {*re.findall(r"\w+", text)}) / len({*gold.split()})
        for text, gold in _pairs(completions, answer)
    ]


def in_last_word(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    return [float(gold in (text.split() or [""])[-1]) for text, gold in _pairs(completions, answer)]


def mentions(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    return [float(re.findall(r"\w+", text).count(gold)) for text, gold in _pairs(completions, answer)]


def skipped_in_front(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    scores = [1.0 if int(text) == int(gold) else 0.1 for text, gold in _pairs(completions, answer) if text.isdecimal()]
    return [0.0] * (len(completions) - len(scores)) + scores


def distinct_only(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    seen: dict[str, float] = {}
    for text, gold in _pairs(completions, answer):
        seen.setdefault(text, 1.0 if text == gold else 0.3 if text else 0.1)
    return [*seen.values(), *[0.0] * (len(completions) - len(seen))]


def longest_first(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    pairs = sorted(_pairs(completions, answer), key=lambda pair: -len(pair[0]))
    return [1.0 if text == gold else len(text) / 100 for text, gold in pairs]
