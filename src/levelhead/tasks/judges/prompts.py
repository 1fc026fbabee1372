"""The task of kind ``judge``: prompts of the user's, whose answers only judges can tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levelhead.errors import InputError
from levelhead.recipe.tasks import Function, JudgedPrompts
from levelhead.tasks.function import FunctionTask


class PromptsTask(FunctionTask):
    """Prompts from the user's data, whose answers only judges can tell apart.

    Args:
        section: The recipe's section.

    Raises:
        InputError: The data are missing or malformed.
    """

    def __init__(self, section: JudgedPrompts) -> None:
        shared = section.model_dump(include=set(Function.model_fields) & set(JudgedPrompts.model_fields) - {"kind"})
        shared = {key: value for key, value in shared.items() if key not in {"judge", "judges"}}
        if section.path is None:
            raise InputError("tasks[].path: a task of kind judge needs a file of prompts")
        super().__init__(Function(kind="function", **{**shared, "name": section.name or "judge"}), rewards=[answered])

    @property
    def rules(self) -> None:
        """There are none that tell answers apart: a score costs calls."""
        return None

    @property
    def part_weights(self) -> Mapping[str, float]:
        """Return no parts: the reward is the judges'."""
        return {}


def answered(prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:  # noqa: ARG001
    """Rate answers that hold anything at all 1, and those without a word 0."""
    texts = [one if isinstance(one, str) else str(one[-1]["content"]) for one in completions]
    return [float(bool(text.strip())) for text in texts]
