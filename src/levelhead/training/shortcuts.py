"""Whether a policy's best-paid answers are right: what they look like, and what else is paid in their place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from levelhead.records import Group, Prompt
from levelhead.tasks.base import SingleTurnTask, Task
from levelhead.tasks.mutations import Marks, Score, options_in, rows_of

FEWEST, SHARE = 4, 0.25
"""Answers with full marks that are of one kind, at least, and their share of all such answers."""
NEAR = 0.05
"""Share of the way to the worst answer within which marks count as full."""
LONG, DISTINCT = 8, 0.34
"""Words from which an answer may repeat itself, and the share of distinct ones at which it does."""
ECHOED = 6
"""Words of a prompt that stand in an answer."""
LISTED = 3
"""Options of the prompt, besides none, that an answer names."""
FEW, PATIENCE_S = 16, 4.0
"""Answers in whose place others are scored, and the seconds that this may take."""
WRONG = ("gibberish", "gibberish-in-form", "empty-box", "empty", "prompt")
"""What is scored in the place of an answer with full marks."""


@dataclass(frozen=True, slots=True)
class Shortcut:
    """A way in which a policy is paid without being right.

    Attributes:
        kind: ``repeats``, ``echoes``, ``lists``, or one of :data:`WRONG` that is paid as well.
        answer: One of the answers.
        share: Of the answers with full marks.
        count: How many have full marks.
    """

    kind: str
    answer: str
    share: float
    count: int

    def to_json(self) -> dict[str, object]:
        """The shortcut as a dict for ``summary.json``."""
        return {"kind": self.kind, "answer": self.answer, "share": self.share, "count": self.count}


def shortcut(task: Task, groups: Sequence[Group], score: Score | None) -> Shortcut | None:
    """Return the shortcut that most of a policy's best-paid answers take; ``None`` where they take none.

    Args:
        task: With single answers.
        groups: Held-out prompts and answers, with their scores.
        score: Scores other answers by the task's rules; ``None`` where that costs calls elsewhere.
    """
    rows = [(g.prompt, r.text[0], r.score.total) for g in groups for r in g.rollouts if r.score and len(r.text) == 1]
    if not isinstance(task, SingleTurnTask) or not rows:
        return None
    totals = [total for *_, total in rows]
    low, best = min(totals), max(totals) if task.reward_range is None else task.reward_range[1]
    full = [(prompt, text) for prompt, text, total in rows if total >= best - NEAR * (best - low) and text.strip()]
    if len(full) < FEWEST or (low == best and best <= 0):
        return None
    for kind in ("repeats", "echoes", "lists"):
        taken = [text for prompt, text in full if _taken(kind, prompt, text) and not _right(kind, task, prompt)]
        if len(taken) >= max(FEWEST, SHARE * len(full)):
            return Shortcut(kind, taken[0][:200], len(taken) / len(full), len(full))
    return None if score is None else _paid_as_well(full, score)


def _taken(kind: str, prompt: Prompt, text: str) -> bool:
    """Whether an answer is of a kind."""
    words = re.findall(r"\w+", text.casefold())
    asked = prompt.texts[-1]
    if kind == "repeats":
        return len(words) >= LONG and len(set(words)) <= DISTINCT * len(words)
    if kind == "echoes":
        joined, plain = " ".join(words), re.findall(r"\w+", asked.casefold())
        return len(plain) >= ECHOED and " ".join(plain) in joined
    options = {option.casefold() for option in options_in(asked)}
    return len(options) >= LISTED and all(option in text.casefold() for option in options)


def _right(kind: str, task: SingleTurnTask, prompt: Prompt) -> bool:
    """Whether the perfect answer is of that kind itself."""
    return any(_taken(kind, prompt, answer) for answer in (task.oracle(prompt) or ())[:1])


def _paid_as_well(full: Sequence[tuple[Prompt, str]], score: Score) -> Shortcut | None:
    """Return what gets full marks where nothing right is said, in the place of answers that got them."""
    rows = rows_of(full[:FEW])
    marks = Marks(score, rows, few=FEW, patience_s=PATIENCE_S)
    for kind in WRONG:
        hits, tried = marks.full(kind)
        if len(hits) >= max(FEWEST, SHARE * tried):
            return Shortcut(kind, marks.example(kind, hits[0])[0][:200], len(hits) / tried, len(full))
    return None
