"""Weights that make strata count alike in the policy gradient, however often a batch samples each of them.

With ``N`` groups of a task in a batch, ``S`` different strata among them and ``n_s`` groups of stratum ``s``, a group
of stratum ``s`` weighs

    w_s = N / (S n_s)

so that every stratum weighs ``N / S`` in all, and the mean weight is 1.  A stratum that a batch does not hold weighs
nothing in it, and the others share alike.  Groups without contrast count among the ``n_s``: they add nothing, and those
beside them weigh no more for it, so that the expected gradient is that of the mean over strata of the expected reward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from levelhead.errors import InputError
from levelhead.recipe.task import TaskSection
from levelhead.records import Prompt
from levelhead.tasks.base import Task


def stratum_of(task: Task, prompt: Prompt) -> str:
    """Return the stratum of a prompt: its value of the first key that the task names; ``none`` where it names none."""
    return next(iter(task.strata(prompt).values()), "none")


def group_weights(strata: Sequence[str]) -> list[float]:
    """Return the weight of each group of a batch from the stratum of each: positive, with a mean of 1.

    >>> group_weights(["yes", "yes", "yes", "no"])
    [0.6666666666666666, 0.6666666666666666, 0.6666666666666666, 2.0]
    """
    counts = Counter(strata)
    return [len(strata) / (len(counts) * counts[stratum]) for stratum in strata]


def balanced_tasks(sections: Sequence[TaskSection], tasks: Mapping[str, Task]) -> dict[str, Task]:
    """Return the tasks by name whose sections ask for balance; ``tasks`` come in the sections' order.

    Raises:
        InputError: Such a task names no strata.
    """
    balanced: dict[str, Task] = {}
    for index, (section, (name, task)) in enumerate(zip(sections, tasks.items(), strict=True)):
        if not section.balance:
            continue
        prompt = next(iter(task.prompts("train", 0)), None)
        if prompt is not None and not task.strata(prompt):
            raise InputError(f"tasks.{index}.balance: task {name!r} names no strata to balance; remove the key")
        balanced[name] = task
    return balanced
