"""The task of kind ``judge``: prompts of the user's, whose answers only judges can tell apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from levelhead.errors import InputError
from levelhead.recipe.tasks import Function, JudgedPrompts
from levelhead.records import Prompt
from levelhead.tasks.function import FunctionTask
from levelhead.tasks.grader import Criterion, LabelledAnswer

_NAME = re.compile(r"[\w.-]{1,40}")


class PromptsTask(FunctionTask):
    """Prompts from the user's data, whose answers only judges can tell apart.

    Args:
        section: The recipe's section.

    Raises:
        InputError: The data are missing or malformed.
    """

    tells_apart = False

    def __init__(self, section: JudgedPrompts) -> None:
        shared = section.model_dump(include=set(Function.model_fields) & set(JudgedPrompts.model_fields) - {"kind"})
        shared = {key: value for key, value in shared.items() if key not in {"judge", "judges"}}
        if section.path is None:
            raise InputError("tasks[].path: a task of kind judge needs a file of prompts")
        super().__init__(Function(kind="function", **{**shared, "name": section.name or "judge"}), rewards=[answered])
        prompts = [*self.prompts("train", 0), *self.prompts("eval", 0)] if section.rubric is not None else []
        self._criteria = {prompt.id: read_criteria(prompt, section.rubric or "") for prompt in prompts}
        self.criteria_together = section.criteria == "together"
        column = section.labelled
        self._labelled = {p.id: read_labelled(p, column, self._criteria[p.id]) for p in prompts if column is not None}

    def criteria(self, prompt: Prompt) -> Sequence[Criterion]:
        """Return the criteria of the prompt's row."""
        return self._criteria.get(prompt.id, ())

    def labelled(self, prompt: Prompt) -> Sequence[LabelledAnswer]:
        """Return the answers of the prompt's row that people have graded."""
        return self._labelled.get(prompt.id, ())

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


def read_criteria(prompt: Prompt, column: str) -> tuple[Criterion, ...]:
    """Read the rubric that a row brings along.

    Raises:
        InputError: It is neither a text nor a list of criteria with different names.
    """
    value = prompt.facts["columns"].get(column)
    where = f"{prompt.facts['where']}: the rubric (column {column!r})"
    if isinstance(value, str) and value.strip():
        return (Criterion("", value, 1.0),)
    if not isinstance(value, list) or not value:
        raise InputError(f"{where} must be a text or a list of criteria")
    criteria = []
    for number, one in enumerate(value, 1):
        fields = {"criterion": one} if isinstance(one, str) else one
        keys = ("criterion", "name", "weight")
        text, name, weight = [fields.get(key) for key in keys] if isinstance(fields, dict) else [None] * 3
        name, weight = name if name is not None else str(number), 1.0 if weight is None else weight
        if not isinstance(text, str) or not text.strip() or not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InputError(f"{where}: criterion {number} needs a text, and a name of letters, digits and _.- at most")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < 1e9:
            raise InputError(f"{where}: the weight of criterion {number} must be a number above 0")
        criteria.append(Criterion(name, text, float(weight)))
    if len({one.name for one in criteria}) < len(criteria):
        raise InputError(f"{where}: two criteria have the same name")
    return tuple(criteria)


def read_labelled(prompt: Prompt, column: str, criteria: Sequence[Criterion]) -> tuple[LabelledAnswer, ...]:
    """Read the answers of a row that people have graded; a row may have none.

    Raises:
        InputError: They are no list of objects of a text and names of the row's criteria.
    """
    value, names = prompt.facts["columns"].get(column), {one.name for one in criteria if one.name}
    for one in value if isinstance(value, list) else [value] if value is not None else []:
        meets = one.get("meets") if isinstance(one, dict) else None
        fits = isinstance(meets, list) and all(isinstance(name, str) and name in names for name in meets)
        if not fits or not isinstance(one.get("answer"), str):
            raise InputError(
                f"{prompt.facts['where']}: an answer of the column {column!r} must be an object of answer, a text, and "
                f"meets, a list of names of the row's criteria ({', '.join(sorted(names)) or 'it has none'})"
            )
    return tuple(LabelledAnswer(one["answer"], frozenset(one["meets"])) for one in value or ())
