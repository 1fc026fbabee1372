"""Answers in words, their exact match and F1 counted as the data sets' official scripts do; and multiple choice.

HotpotQA: ``hotpot_evaluate_v1.py`` (Yang et al. 2018), which is SQuAD's with a rule for yes and no.  DROP:
``drop_eval.py`` (Dua et al. 2019), where an answer may be several spans.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from levelhead.recipe.workflow import SandboxLimits
from levelhead.tasks.datasets.base import Example, Verdict
from levelhead.tasks.stated import stated

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = frozenset(string.punctuation)
_CLOSED = frozenset({"yes", "no", "noanswer"})
_MOST_SPANS = 50
SEPARATOR = ";"
"""Divides the spans of an answer that names several things."""


def check_words(example: Example, text: str, limits: SandboxLimits | None = None) -> Verdict:  # noqa: ARG001
    """Judge an answer by HotpotQA's exact match and F1, against the reference it is closest to."""
    answer = stated(text)
    if answer is None:
        return Verdict(right=False, score=0.0, stated=None, note="no answer")
    references = [" ".join(spans) for spans in example.answers]
    right = any(hotpot_match(answer, reference) for reference in references)
    return Verdict(right, max((hotpot_f1(answer, reference) for reference in references), default=0.0), answer)


def check_spans(example: Example, text: str, limits: SandboxLimits | None = None) -> Verdict:  # noqa: ARG001
    """Judge an answer by DROP's exact match and F1, the best over its annotators; spans stand between semicolons."""
    answer = stated(text)
    if answer is None:
        return Verdict(right=False, score=0.0, stated=None, note="no answer")
    spans = [span.strip() for span in answer.split(SEPARATOR) if span.strip()][:_MOST_SPANS] or [answer]
    scores = [drop_scores(spans, reference) for reference in example.answers if reference[0].strip()]
    right = max((match for match, _ in scores), default=0.0) == 1.0
    return Verdict(right, max((f1 for _, f1 in scores), default=0.0), answer)


def hotpot_normalize(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces."""
    bare = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def hotpot_match(answer: str, reference: str) -> bool:
    """Whether two texts are the same once normalised."""
    return hotpot_normalize(answer) == hotpot_normalize(reference)


def hotpot_f1(answer: str, reference: str) -> float:
    """F1 of the normalised words as bags; 0 where one side is yes or no and the other is anything else."""
    got, want = hotpot_normalize(answer), hotpot_normalize(reference)
    if got != want and (got in _CLOSED or want in _CLOSED):
        return 0.0
    words, wanted = got.split(), want.split()
    common = sum((Counter(words) & Counter(wanted)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(words), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def drop_scores(answer: Sequence[str], reference: Sequence[str]) -> tuple[float, float]:
    """Return DROP's exact match (0 or 1) and F1 (rounded to two places, as the script does) of two lists of spans."""
    got, want = [drop_normalize(span) for span in answer], [drop_normalize(span) for span in reference]
    match = float(set(got) == set(want) and len(got) == len(want))
    scores = _aligned([set(span.split()) for span in got], [set(span.split()) for span in want])
    return match, round(sum(scores) / len(scores), 2)


def drop_normalize(text: str) -> str:
    """Lower case, split at spaces and hyphens, no punctuation but in numbers, numbers as floats, no articles."""
    words = []
    for token in re.split(" |-", text.lower()):
        bare = token if _is_number(token) else "".join(c for c in token if c not in _PUNCTUATION)
        number = str(float(bare)) if _is_number(bare) else bare
        words.append(" ".join(_ARTICLES.sub(" ", number).split()))
    return " ".join(word for word in words if word).strip()


def _aligned(got: Sequence[set[str]], want: Sequence[set[str]]) -> list[float]:
    """Match spans one to one so that their F1 adds up to the most; what has no partner counts 0."""
    from scipy.optimize import linear_sum_assignment  # a quarter of a second to import: only for several spans

    scores = [[_bag_f1(answer, reference) for answer in got] for reference in want]
    best = [0.0] * max(len(got), len(want))
    if len(got) == len(want) == 1:
        return [scores[0][0]]
    for row, column in zip(*linear_sum_assignment(scores, maximize=True), strict=True):
        best[row] = max(best[row], scores[row][column])
    return best


def _bag_f1(answer: set[str], reference: set[str]) -> float:
    numbers = {word for word in reference if _is_number(word)}
    if numbers and not numbers & {word for word in answer if _is_number(word)}:
        return 0.0
    common = len(answer & reference)
    precision = common / len(answer) if answer else 1.0
    recall = common / len(reference) if reference else 1.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_LETTER = re.compile(r"^\W*(?:option\s+|answer\s+)?([A-Za-z])(?:\W|$)", re.IGNORECASE)
_MARKED = re.compile(r"^\W*(?:(?:option|answer)\s+)?[A-Za-z]\s*[).:,-]", re.IGNORECASE)


def check_letter(example: Example, text: str, limits: SandboxLimits | None = None) -> Verdict:  # noqa: ARG001
    """Judge a choice; an answer that names no option states none."""
    option = choice(example, text)
    if option is None:
        return Verdict(right=False, score=0.0, stated=None, note="names no option")
    option_text = example.options[option]
    right = any(option_text == spans[0] for spans in example.answers)
    return Verdict(right, float(right), chr(ord("A") + option))


def choice(example: Example, text: str) -> int | None:
    """Return the index of the option that a text names; ``None`` where it names none."""
    answer = stated(text)
    if answer is None:
        return None
    whole = [i for i, option in enumerate(example.options) if hotpot_normalize(option) == hotpot_normalize(answer)]
    if whole:
        return whole[0]
    match = _LETTER.match(answer)
    if match is None or (len(answer) > 1 and answer[match.end(1) : match.end(1) + 1].isalpha()):
        return None
    index = ord(match[1].upper()) - ord("A")
    # "A dog" is an article and a word; "A. dog", "(A)" and "A" name an option.
    if len(answer.split()) > 1 and not _MARKED.match(answer):
        return None
    return index if index < len(example.options) else None
