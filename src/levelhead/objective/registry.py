"""Variants by name: losses, estimators, shapers, controllers and aggregators are registered and built in one way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from levelhead.section import Section

V = TypeVar("V", bound=Section)
_BOUNDS = {
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:g}",
}


def registry(package: str, base: type[V], entries: Sequence[str | type[V]]) -> Mapping[str, type[V]]:
    """Return the variants of a package by name, in this order.

    Args:
        package: Where they are.
        base: What each of them derives from.
        entries: Each one's class, or ``module:Class`` within the package: the one line that registers it.

    Raises:
        TypeError: A class is none of the base's, or has no name, or that of another.
    """
    variants: dict[str, type[V]] = {}
    for entry in entries:
        variant: Any = entry
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            variant = getattr(import_module(f"{package}.{module}"), attribute)
        name = getattr(variant, "name", "")
        if not (isinstance(variant, type) and issubclass(variant, base) and name) or name in variants:
            raise TypeError(f"{package}: {entry} is no {base.__name__} with a name of its own")
        variants[name] = variant
    return MappingProxyType(variants)


def build(variant: type[V], settings: Mapping[str, Any], label: str, key: str = "") -> V:
    """Return a variant with these settings.

    Args:
        variant: Its class.
        settings: Of its fields; others hold their defaults.
        label: What to call it in an error; empty where the caller does.
        key: Put before the name of a setting in an error, with a dot.

    Raises:
        ValueError: A setting is unknown, missing or out of range; in one line.
    """
    try:
        return variant(**settings)
    except ValidationError as error:
        lead = label and f"{label}: "
        raise ValueError(f"{lead}{_explain(error.errors()[0], variant, key)}") from None


def owners(variants: Mapping[str, type[V]], setting: str) -> list[str]:
    """Return the names of the variants that have a setting."""
    return [name for name, variant in variants.items() if setting in variant.model_fields]


def _explain(error: ErrorDetails, variant: type[Section], key: str) -> str:
    name = ".".join([*([key] if key else []), *map(str, error["loc"])])
    if error["type"] == "extra_forbidden":
        return f"there is no setting {name!r}; it takes {', '.join(variant.model_fields) or 'none'}"
    if error["type"] == "missing":
        return f"{name}: missing"
    if error["type"] in _BOUNDS:
        return f"{name} {_BOUNDS[error['type']].format(**error['ctx'])}, got {error['input']!r}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{name}: {message} (got {error['input']!r})"[:300] if error["loc"] else message
