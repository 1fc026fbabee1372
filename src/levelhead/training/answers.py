"""Whether the answers of a batch depend on its prompts, and how its strata fare, task by task."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

from levelhead import metrics as metric
from levelhead.diagnosis.sameness import Likeness, alike, metrics, over_forms
from levelhead.records import Group, Prompt, Rollout
from levelhead.tasks.base import Task
from levelhead.training.advantages import stratum_of

SOLVED_AT = 0.5
"""A group whose rewards are all equal counts as solved from this reward on, else as failed."""


def answer_metrics(tasks: Mapping[str, Task], groups: Sequence[Group]) -> dict[str, float]:
    """Return ``answers/...`` of every task (see :mod:`levelhead.diagnosis.sameness`).

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
        values |= stratum_metrics(task, name, [group for members in forms.values() for group in members])
    return values


def stratum_metrics(task: Task, name: str, groups: Sequence[Group]) -> dict[str, float]:
    """Return ``strata/...`` of a task: how the rollouts of each stratum fare.

    A share of a few rollouts says nothing: fewer than two strata, or fewer than two prompts a stratum on average, give
    no numbers.  That also bounds how many there are.

    Args:
        task: Tells the strata of prompts.
        name: Of the task.
        groups: All of its groups of a step.
    """
    strata: dict[str, list[Group]] = {}
    for group in groups:
        strata.setdefault(stratum_of(task, group.prompt), []).append(group)
    if len(strata) < 2 or len(groups) < 2 * len(strata):
        return {}
    counts = Counter(meaning for group in groups for meaning in _meanings(task, group))
    common = min(counts, key=lambda meaning: (-counts[meaning], meaning))
    values: dict[str, float] = {}
    for stratum, members in strata.items():
        rollouts = [rollout for group in members for rollout in group.rollouts]
        missed = [miss for group in members for miss in _misses(task, group, common)]
        values[metric.STRATUM_REWARD.of(name, stratum)] = statistics.fmean(rollout.reward for rollout in rollouts)
        values[metric.STRATUM_SUCCESS.of(name, stratum)] = statistics.fmean(map(success, rollouts))
        values[metric.STRATUM_COMMON.of(name, stratum)] = statistics.fmean(missed)
    return values


def _misses(task: Task, group: Group, common: str) -> list[bool]:
    """Which rollouts give the common answer where it is not the right one; without an oracle, where they fail."""
    turns = task.oracle(group.prompt)
    perfect = None if turns is None else task.canonical(group.prompt, "\n\n".join(turns))
    wrong = [not success(rollout) if perfect is None else perfect != common for rollout in group.rollouts]
    return [miss and meaning == common for miss, meaning in zip(wrong, _meanings(task, group), strict=True)]


def _meanings(task: Task, group: Group) -> list[str]:
    """What each rollout of a group answers; they repeat themselves, and reading one may take a parser."""
    texts = ["\n\n".join(rollout.text) for rollout in group.rollouts]
    meaning_of = {text: task.canonical(group.prompt, text) for text in dict.fromkeys(texts)}
    return [meaning_of[text] for text in texts]


def success(rollout: Rollout) -> bool:
    """Whether a rollout succeeded: by the ``success`` part of its score where there is one, else by its reward."""
    return rollout.parts.get("success", rollout.reward) >= SOLVED_AT


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
        meanings.setdefault(_key(group.prompt), []).extend(_meanings(task, group))
        wordings.setdefault(_key(group.prompt), []).extend("\n\n".join(rollout.text) for rollout in group.rollouts)
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
