"""How right an answer in words is."""

from __future__ import annotations

import re

from levelhead.tasks.numbers import final_answer
from levelhead.tasks.text_match import exact_match, token_f1

_CJK = re.compile(r"([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])")
_OUTER = re.compile(r"^[\s*_`\"'\u201c\u2018]+|[\s*_`\"'\u201d\u2019.]+$")


def grade_words(answer: str, references: tuple[str, ...]) -> float:
    """Return the correctness level of a text, against the reference it is closest to.

    1.0: the same once normalised (Rajpurkar et al. 2016: case, punctuation, articles).  0.7: token F1 of at least 0.8.
    0.4: at least 0.4.  0.2: any other text.  0.0: none.  Characters of scripts without spaces are tokens.
    """
    stated = final_answer(answer)
    lines = [line for line in answer.strip().splitlines() if line.strip()]
    text = _OUTER.sub("", stated if stated is not None else lines[-1] if lines else "")
    return max((_grade(text, reference) for reference in references), default=0.0)


def _grade(text: str, reference: str) -> float:
    if exact_match(text, reference):
        return 1.0
    score = token_f1(_CJK.sub(r" \1 ", text), _CJK.sub(r" \1 ", reference))
    if score >= 0.8:
        return 0.7
    if score >= 0.4:
        return 0.4
    return 0.2 if text.strip() else 0.0
