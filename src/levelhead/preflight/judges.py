"""Judges: they answer, they give grades, and a perfect answer gets a better one than an empty or a wrong one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from statistics import fmean

from levelhead.errors import InputError, RewardError
from levelhead.preflight.context import PreflightContext
from levelhead.preflight.result import Check
from levelhead.records import Prompt
from levelhead.rollout.draws import derive
from levelhead.tasks.base import Answer, Judged, SingleTurnTask

ASKED = 3
"""Prompts of a task whose perfect, empty and wrong answers a judge grades."""
CANDIDATES = 24
"""Prompts whose perfect answers may serve as wrong ones."""
PATIENCE_S = 15.0
"""Longest wait for a silent endpoint: whoever checks sits in front of it."""
_KINDS = ("perfect", "empty", "wrong")


def check_judges(context: PreflightContext) -> Iterator[Check]:
    """Let the judge of each task grade answers of known worth: nine verdicts a task.

    A judge whose endpoint is of no use is not asked again by later checks, which go by the rules alone.
    """
    for name, task in context.setup.tasks.items():
        if not isinstance(task, Judged):
            continue
        prompts = list(itertools.islice(task.prompts("train", derive(context.seed, "judges", name)), CANDIDATES))
        cases = known_answers(task, prompts)
        if not cases:
            yield Check(f"judges/grades/{name}", "warn", "no perfect answers are known to try the judge on")
            continue
        try:
            grades = context.loop.run(task.grade([answer for _, answer in cases], PATIENCE_S))
        except RewardError as error:
            task.asks = False
            first = str(error).splitlines()[0]
            yield Check(f"judges/answers/{name}", "fail", first, {"cause": error.cause}, error.fix)
            continue
        except InputError as error:
            task.asks = False
            yield Check(f"judges/answers/{name}", "fail", str(error), {}, "set the variable, or name another one")
            continue
        yield from _of_task(task, [(kind, grade) for (kind, _), grade in zip(cases, grades, strict=True)])


def known_answers(task: SingleTurnTask, prompts: Sequence[Prompt]) -> list[tuple[str, Answer]]:
    """Return ``(kind, answer)`` of some prompts: perfect, empty, and the perfect answer to another prompt.

    The wrong answer is the one that the task's rules score lowest among the perfect answers to the other prompts.

    Args:
        task: Knows perfect answers, and scores by rules.
        prompts: The first few are tried; all lend their perfect answers.
    """
    perfect = {prompt.id: answers[0] for prompt in prompts if (answers := task.oracle(prompt))}
    cases: list[tuple[str, Answer]] = []
    for prompt in [prompt for prompt in prompts if prompt.id in perfect][:ASKED]:
        mine = perfect[prompt.id]
        others = [text for text in dict.fromkeys(perfect.values()) if text != mine]
        cases += [("perfect", Answer(prompt, mine)), ("empty", Answer(prompt, ""))]
        if others:
            wrong = min(others, key=lambda text: task.score(prompt, text).total)
            cases.append(("wrong", Answer(prompt, wrong)))
    return cases


def _of_task(task: Judged, grades: Sequence[tuple[str, float | None]]) -> Iterator[Check]:
    """Whether there are grades, and whether they tell good from bad."""
    given = {kind: [g for k, g in grades if k == kind and g is not None] for kind in _KINDS}
    means = {kind: fmean(values) for kind, values in given.items() if values}
    failed = sum(grade is None for _, grade in grades)
    said = task.said
    evidence = {"verdicts": len(grades), "without_grade": failed, "mean_grade": means, "last_without_grade": said}
    name = f"judges/grades/{task.name}"
    fix = (
        "take a model that follows instructions, or raise tasks[].judge.max_tokens if its replies are cut before the "
        "line 'Grade: N'"
    )
    if failed * 2 > len(grades) or "perfect" not in means:
        message = f"{failed} of {len(grades)} replies of the judge hold no grade; the last one: {said!r}"
        yield Check(name, "fail", message, evidence, fix)
        return
    if failed:
        message = f"{failed} of {len(grades)} replies of the judge hold no grade; the last one: {said!r}"
        yield Check(name, "warn", message, evidence, fix)
    else:
        yield Check(name, "pass", f"all {len(grades)} replies of the judge hold a grade", evidence)
    listed = ", ".join(f"{kind} {mean:.2f}" for kind, mean in means.items())
    not_below = [kind for kind in ("empty", "wrong") if kind in means and means[kind] >= means["perfect"]]
    order = f"judges/order/{task.name}"
    if not_below:
        message = f"the judge does not rank a perfect answer above {' and '.join(not_below)} ones: {listed}"
        fix = "take a stronger model as judge, or write tasks[].judge.rubric more plainly"
        yield Check(order, "fail", message, evidence, fix)
        return
    yield Check(order, "pass", f"the judge ranks perfect answers first: {listed}", evidence)
