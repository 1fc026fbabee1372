"""Judges: they answer, they give grades, and a perfect answer gets a better one than an empty or a wrong one."""

from __future__ import annotations

import itertools
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from levelhead.errors import InputError, RewardError
from levelhead.preflight.context import PreflightContext
from levelhead.preflight.result import Check, Status
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
    """Let the judges of each task grade answers of known worth: nine verdicts each.

    A judge whose endpoint is of no use is not asked again by later checks, which go by the rules alone.
    """
    for name, task in context.setup.tasks.items():
        if not isinstance(task, Judged):
            continue
        yield from _calibrated(task)
        prompts = list(itertools.islice(task.prompts("train", derive(context.seed, "judges", name)), CANDIDATES))
        cases = known_answers(task, prompts)
        if not cases:
            yield Check(f"judges/grades/{name}", "warn", "no perfect answers are known to try the judge on")
            continue
        answers = [answer for _, answer in cases]
        if not task.titles:
            grades, check = _asked(context, name, task.grade(answers, PATIENCE_S), "fail")
            if check is not None:
                task.asks = False
                yield check
            else:
                yield from _of_task(task, name, [(k, g) for (k, _), g in zip(cases, grades, strict=True)])
            continue
        silent: list[Check] = []
        for title in task.titles:
            grades, check = _asked(context, f"{name}/{title}", task.grade_by(title, answers, PATIENCE_S), "warn")
            if check is not None:
                silent.append(check)
                continue
            yield from _of_task(task, f"{name}/{title}", [(k, g) for (k, _), g in zip(cases, grades, strict=True)])
        if len(silent) == len(task.titles):
            task.asks = False
            silent = [replace(check, status="fail") for check in silent]
        yield from silent


def _asked(
    context: PreflightContext, name: str, grades: Coroutine[None, None, list[float | None]], status: Status
) -> tuple[list[float | None], Check | None]:
    """Grades, or the check that says why there are none."""
    try:
        return context.loop.run(grades), None
    except RewardError as error:
        first = str(error).splitlines()[0]
        return [], Check(f"judges/answers/{name}", status, first, {"cause": error.cause}, error.fix)
    except InputError as error:
        return [], Check(f"judges/answers/{name}", "fail", str(error), {}, "set the variable, or name another one")


def _calibrated(task: Judged) -> Iterator[Check]:
    """Whether the judges passed their calibration, where the recipe names one."""
    for title, reasons in task.refusals.items():
        message = f"the judge {title} failed its calibration: {'; '.join(reasons)}"
        fix = "take it out of tasks[].judges.members, or calibrate again after changing it"
        whose = f"{task.name}/{title}"
        yield Check(f"judges/calibration/{whose}", "fail", message, {"reasons": list(reasons)}, fix)


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


def _of_task(task: Judged, whose: str, grades: Sequence[tuple[str, float | None]]) -> Iterator[Check]:
    """Whether there are grades, and whether they tell good from bad."""
    given = {kind: [g for k, g in grades if k == kind and g is not None] for kind in _KINDS}
    means = {kind: fmean(values) for kind, values in given.items() if values}
    failed = sum(grade is None for _, grade in grades)
    said = task.said
    evidence = {"verdicts": len(grades), "without_grade": failed, "mean_grade": means, "last_without_grade": said}
    name = f"judges/grades/{whose}"
    fix = (
        "take a model that follows instructions, or raise tasks[].judge.max_tokens if its replies are cut before their "
        "last line, 'Grade: N' or 'Better: A'"
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
    order = f"judges/order/{whose}"
    if not_below:
        message = f"the judge does not rank a perfect answer above {' and '.join(not_below)} ones: {listed}"
        fix = "take a stronger model as judge, or write tasks[].judge.rubric more plainly"
        yield Check(order, "fail", message, evidence, fix)
        return
    yield Check(order, "pass", f"the judge ranks perfect answers first: {listed}", evidence)
