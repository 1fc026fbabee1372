"""Judges grade answers of known worth: asked once per judge, for all checks of judges."""

from __future__ import annotations

import itertools
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field

from levelhead.errors import InputError, RewardError
from levelhead.preflight.context import PreflightContext
from levelhead.records import Prompt
from levelhead.rollout.draws import derive
from levelhead.tasks.base import Answer, SingleTurnTask
from levelhead.tasks.grader import Grader

ASKED = 3
"""Prompts of a task whose perfect, empty and wrong answers a judge grades."""
CANDIDATES = 24
"""Prompts whose perfect answers may serve as wrong ones."""
PATIENCE_S = 15.0
"""Longest wait for a silent endpoint: whoever checks sits in front of it."""
KINDS = ("perfect", "empty", "wrong", "unknown")
ANY = "I do not know."
"""Answer of unknown worth that a judge grades where nobody knows a perfect one."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What one judge made of answers of known worth.

    Attributes:
        whose: Task, and title of the judge where there are several.
        grades: (kind, grade) of each answer; the grade is ``None`` where the reply held none.
        error: Why there are none at all, in one line; empty where there are.
        fix: What to change then.
        fatal: Whether no judge of the task can be asked.
        cause: Kind of trouble, as ``authentication`` or ``outage``.
        last: Last reply without a grade.
    """

    whose: str
    grades: list[tuple[str, float | None]] = field(default_factory=list)
    error: str = ""
    fix: str = ""
    fatal: bool = True
    cause: str = ""
    last: str = ""

    @property
    def means(self) -> dict[str, float]:
        """Mean grade by kind, where there is one."""
        by_kind = {kind: [g for k, g in self.grades if k == kind and g is not None] for kind in KINDS}
        return {kind: sum(grades) / len(grades) for kind, grades in by_kind.items() if grades}

    @property
    def failed(self) -> int:
        """Replies that held no grade."""
        return sum(grade is None for _, grade in self.grades)


def verdicts_of(context: PreflightContext, task: SingleTurnTask, grader: Grader) -> list[Verdicts]:
    """Let the judges of a task grade answers of known worth, nine verdicts each; else three of any worth.

    Judges whose endpoint is of no use are not asked again by later checks, which go by the rules alone.
    """
    if task.name not in context.verdicts:
        name = task.name
        prompts = list(itertools.islice(task.prompts("train", derive(context.seed, "judges", name)), CANDIDATES))
        cases = judged_answers(task, prompts)
        answers = [answer for _, answer in cases]
        kinds = [kind for kind, _ in cases]
        if not grader.titles:
            made = [_asked(context, grader, name, kinds, grader.grade(answers, PATIENCE_S), fatal=True)]
        else:
            made = [
                _asked(context, grader, f"{name}/{t}", kinds, grader.grade_by(t, answers, PATIENCE_S), fatal=False)
                for t in grader.titles
            ]
        if made and all(verdicts.error for verdicts in made):
            grader.asks = False
        context.verdicts[name] = made
    return context.verdicts[task.name]


def _asked(
    context: PreflightContext,
    grader: Grader,
    whose: str,
    kinds: Sequence[str],
    grades: Coroutine[None, None, list[float | None]],
    *,
    fatal: bool,
) -> Verdicts:
    try:
        made = list(zip(kinds, context.loop.run(grades), strict=True))
    except RewardError as error:
        return Verdicts(whose, error=str(error).splitlines()[0], fix=error.fix, fatal=fatal, cause=error.cause)
    except InputError as error:
        return Verdicts(whose, error=str(error).splitlines()[0])
    return Verdicts(whose, made, last=grader.last_failure)


def judged_answers(task: SingleTurnTask, prompts: Sequence[Prompt]) -> list[tuple[str, Answer]]:
    """Return ``(kind, answer)`` of some prompts: perfect, empty, and the perfect answer to another; or any answer.

    The wrong answer is the one that the task's rules score lowest among the perfect answers to the other prompts.

    Args:
        task: Knows perfect answers, and scores by rules.
        prompts: The first few are tried; all lend their perfect answers.
    """
    perfect = {prompt.id: answers[0] for prompt in prompts if (answers := task.oracle(prompt))}
    if not perfect:
        return [("unknown", Answer(prompt, ANY)) for prompt in prompts[:ASKED]]
    cases: list[tuple[str, Answer]] = []
    for prompt in [prompt for prompt in prompts if prompt.id in perfect][:ASKED]:
        mine = perfect[prompt.id]
        others = [text for text in dict.fromkeys(perfect.values()) if text != mine]
        cases += [("perfect", Answer(prompt, mine)), ("empty", Answer(prompt, ""))]
        if others:
            wrong = min(others, key=lambda text: task.score(prompt, text).total)
            cases.append(("wrong", Answer(prompt, wrong)))
    return cases
