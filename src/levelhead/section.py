"""Validated, frozen groups of settings: the base of every recipe section, loss, estimator, shaper and controller."""

from __future__ import annotations

from typing import Any, get_args

from annotated_types import Le, Lt
from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

OF_A_KEY = "of_a_key"
"""Type of the error that a section reports for a key of its own."""
LARGEST = 1e9
"""Bound on the size of every number whose key gives no other."""


class Section(BaseModel):
    """A group of settings: keys of a recipe, or the knobs of one loss, estimator, shaper or controller.

    Unknown keys are errors, values are fixed once loaded, no number is infinite, NaN or a truth value, and none is
    larger than :data:`LARGEST` unless its key says so.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _truth_is_no_number(cls, data: Any) -> Any:
        """Refuse ``true`` where a number is wanted; Python would take it for 1."""
        for name, field in cls.model_fields.items() if isinstance(data, dict) else ():
            key = field.alias or name
            if _wants_number(field.annotation) and _holds_truth(data.get(key)):
                fields = {"key": key, "zh": "应为数，而 true 和 false 不是数"}
                raise PydanticCustomError(OF_A_KEY, "a number is wanted, and true or false is none", fields)
        return data

    @model_validator(mode="before")
    @classmethod
    def _sets_have_no_order(cls, data: Any) -> Any:
        """Refuse a set where a list is wanted: its order differs from process to process."""
        for key, value in data.items() if isinstance(data, dict) else ():
            if isinstance(value, set | frozenset):
                fields = {"key": key, "zh": "应为列表，而集合没有顺序"}
                raise PydanticCustomError(OF_A_KEY, "a list is wanted, and a set has no order", fields)
        return data

    @field_validator("*", mode="after")
    @classmethod
    def _numbers_are_bounded(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse numbers beyond any use: they overflow, or fill the memory, in the middle of a run."""
        field = cls.model_fields[info.field_name or ""]
        if any(isinstance(bound, Le | Lt) for bound in field.metadata):
            return value
        if (largest := max(_sizes(value), default=0)) > LARGEST:
            raise ValueError(f"is beyond any use: at most {LARGEST:g} in size, got {float(min(largest, 10**300)):g}")
        return value


def _wants_number(annotation: Any) -> bool:
    leaves = _leaves(annotation)
    return bool(leaves & {int, float}) and bool not in leaves


def _leaves(annotation: Any) -> set[Any]:
    """Types that an annotation is made of, without the sections among them, which look after themselves."""
    inner = get_args(annotation)
    return {leaf for part in inner for leaf in _leaves(part)} if inner else {annotation}


def _holds_truth(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return any(map(_holds_truth, value)) if isinstance(value, list | tuple) else isinstance(value, bool)


def _sizes(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [size for item in value for size in _sizes(item)]
    return [abs(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []
