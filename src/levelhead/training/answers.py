"""Whether the answers of a batch depend on its prompts, task by task, from the rollouts at hand."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from levelhead.diagnosis.answers import Likeness, alike, metrics, over_forms
from levelhead.records import Group, Prompt
from levelhead.tasks.base import Task


def answer_metrics(tasks: Mapping[str, Task], groups: Sequence[Group]) -> dict[str, float]:
    """Return ``answers/...`` of every task (see :mod:`levelhead.diagnosis.answers`).

    Answers count by what they mean to the task (:meth:`Task.canonical`); groups of the same prompt are one, and prompts
    are compared with those of the same form (:meth:`Task.form`).  A task of
    which the batch holds fewer than two prompts has no such numbers.

    Args:
        tasks: By name.
        groups: All that was sampled for a step, also what gave way to other groups afterwards.
    """
    values: dict[str, float] = {}
    for name in dict.fromkeys(group.prompt.task for group in groups):
        task = tasks[name]
        forms: dict[str, list[Group]] = {}
        for group in groups:
            if group.prompt.task == name and group.rollouts:
                forms.setdefault(task.form(group.prompt), []).append(group)
        values |= metrics(name, _over_forms(task, forms, _of_answers), _over_forms(task, forms, _of_perfect_answers))
    return values


def _over_forms(
    task: Task, forms: Mapping[str, Sequence[Group]], measure: Callable[[Task, Sequence[Group]], Likeness | None]
) -> Likeness | None:
    """Measure each form of prompt that has two prompts or more, and take the mean."""
    measured = ((len({_key(g.prompt) for g in members}), measure(task, members)) for members in forms.values())
    return over_forms([(n, likeness) for n, likeness in measured if likeness is not None])


def _of_answers(task: Task, groups: Sequence[Group]) -> Likeness | None:
    meanings: dict[Hashable, list[str]] = {}
    wordings: dict[Hashable, list[str]] = {}
    for group in groups:
        meaning_of: dict[str, str] = {}  # rollouts of a prompt repeat themselves, and reading one may take a parser
        for rollout in group.rollouts:
            text = "\n\n".join(rollout.text)
            if text not in meaning_of:
                meaning_of[text] = task.canonical(group.prompt, text)
            meanings.setdefault(_key(group.prompt), []).append(meaning_of[text])
            wordings.setdefault(_key(group.prompt), []).append(text)
    return alike(list(meanings.values()), list(wordings.values()))


def _of_perfect_answers(task: Task, groups: Sequence[Group]) -> Likeness | None:
    """The same of perfect answers to the same prompts; ``None`` where the task does not know all of them."""
    meanings: dict[Hashable, list[str]] = {}
    wordings: dict[Hashable, list[str]] = {}
    for group in groups:
        turns = task.oracle(group.prompt)
        if turns is None:
            return None
        text = "\n\n".join(turns)
        meanings[_key(group.prompt)] = [task.canonical(group.prompt, text)]
        wordings[_key(group.prompt)] = [text]
    return alike(list(meanings.values()), list(wordings.values()))


def _key(prompt: Prompt) -> Hashable:
    """What makes two prompts the same: their tokens; of environments, which show themselves later, the id."""
    return prompt.token_ids or prompt.id
