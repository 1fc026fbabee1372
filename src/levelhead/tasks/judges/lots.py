"""Which answers to drop with a missing verdict, so that being dropped does not depend on being right."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence

from levelhead.rollout.draws import generator
from levelhead.tasks.base import Answer


def draw_lots(answers: Sequence[Answer], grades: Mapping[int, float | None]) -> list[int]:
    """Return which answers to drop so that being dropped does not depend on being right.

    Only right answers have verdicts, so that only they can lack one.  Of the other answers in a group (all answers to
    one prompt) the same share is dropped by lot: if f of its n verdicts are missing and m answers had none to miss,
    m f / n of these, rounded up or down at random so that this is their mean.  Where verdicts go missing at random
    with probability q, every answer of the group, right or wrong, is dropped with probability E[f / n] = q; and
    whatever they go missing by, right and wrong answers keep their proportion.  A group without any verdict takes the
    share of all groups together.

    Args:
        answers: Of a step, all rollouts of each prompt.
        grades: By index, of the answers that were judged; ``None`` where the verdict is missing.
    """
    groups: dict[str, MutableSequence[int]] = {}
    for i, answer in enumerate(answers):
        groups.setdefault(answer.prompt.id, []).append(i)
    usual = sum(grade is None for grade in grades.values()) / max(len(grades), 1)
    dropped: list[int] = []
    for name, members in groups.items():
        judged = [i for i in members if i in grades]
        missing = [i for i in judged if grades[i] is None]
        others = [i for i in members if i not in grades]
        share = len(missing) / len(judged) if judged else usual
        # The answers are drawn by the recipe's seed, and the lot depends on nothing else.
        lot = generator(0, "judge-lot", name, *(ascii(answers[i].text) for i in members))
        count = int(share * len(others) + lot.random())
        dropped += [*missing, *(others[i] for i in lot.permutation(len(others))[:count])]
    return dropped
