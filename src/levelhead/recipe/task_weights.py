"""``grpo.task_weights``: what each task's objective counts for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from levelhead.objective.task_weights import TASK_WEIGHTS, TaskWeights
from levelhead.recipe.variants import CustomVariant, as_sections, one_of


class CustomTaskWeights(CustomVariant):
    """A rule of your own: a class that derives from ``levelhead.objective.task_weights.TaskWeights``."""


_SECTIONS = as_sections(TASK_WEIGHTS, default="fixed")
FIXED_WEIGHTS: Any = _SECTIONS["fixed"](kind="fixed")
"""The section of weights that never move."""

if TYPE_CHECKING:
    AnyTaskWeights = TaskWeights | CustomTaskWeights
else:
    AnyTaskWeights = one_of(list(_SECTIONS.values()), CustomTaskWeights)


def make_task_weights(section: TaskWeights | CustomTaskWeights) -> TaskWeights:
    """Return the rule that a section asks for; a class of the user's own is loaded.

    Raises:
        InputError: There is no such class, or a setting does not fit it.
    """
    return section.load(TaskWeights, "grpo.task_weights") if isinstance(section, CustomTaskWeights) else section
