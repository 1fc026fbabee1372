"""Recipe sections whose keys are those of registered variants, and sections for variants of your own.

A section such as ``grpo.loss`` is flat: ``kind`` names a variant, and the knobs of all variants are keys beside it.
The keys are not written down a second time: :func:`with_knobs` takes them from the variants.
A section such as ``grpo.kl.controller`` has the keys of one variant alone: :func:`one_of` makes it a choice of the
variants themselves, each with its name as ``kind``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import copy
from operator import getitem
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Optional, TypeVar, Union

from pydantic import Field, SerializerFunctionWrapHandler, create_model, model_serializer
from pydantic.fields import FieldInfo

from levelhead.errors import InputError
from levelhead.objective.registry import build, owners
from levelhead.section import Section
from levelhead.usercode import load_class

S = TypeVar("S", bound="VariantSection")
V = TypeVar("V", bound=Section)
CUSTOM = "custom"
"""The ``kind`` of a variant of the user's own."""
REGISTERED = "registered"
"""How a location in a validation error names the choice of any other kind."""


class VariantSection(Section):
    """A section that asks for one variant by ``kind``."""

    FIRST: ClassVar[tuple[str, ...]] = ()
    """Keys that a written recipe begins the section with, in this order."""
    LAST: ClassVar[tuple[str, ...]] = ()
    """Keys that it ends it with; the others stand between, as they are declared."""

    kind: str
    """Which variant."""

    if TYPE_CHECKING:

        def __getattr__(self, knob: str) -> Any:
            """Knobs are fields that mypy cannot see."""

    @model_serializer(mode="wrap")
    def _in_order(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        between = [key for key in data if key not in self.FIRST and key not in self.LAST]
        return {key: data[key] for key in (*self.FIRST, *between, *self.LAST) if key in data}

    def knobs(self, variant: type[Section]) -> dict[str, Any]:
        """Return the keys of this section that a variant has; those that are null are left to its own default."""
        shared = {name: getattr(self, name) for name in variant.model_fields if name in type(self).model_fields}
        return {name: value for name, value in shared.items() if value is not None}


class CustomVariant(Section):
    """Keys of a section that asks for a variant of the user's own."""

    kind: Literal["custom"]
    """``custom``: a class of your own."""
    path: str
    """Where the class is, as ``file.py:Name``; seen from the current folder."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Values of its fields."""

    def load(self, base: type[V], key: str, shared: Mapping[str, Any] | None = None) -> V:
        """Return the user's variant with its settings.

        Args:
            base: What its class must derive from.
            key: Of this section.
            shared: Keys of the section that are handed to any class with fields of these names.

        Raises:
            InputError: There is no such class, or a setting does not fit it; names file and key.
        """
        variant = load_class(self.path, base, f"{key}.path")
        given = {name: value for name, value in (shared or {}).items() if name in variant.model_fields}
        try:
            return build(variant, given | self.settings, self.path, f"{key}.settings")
        except ValueError as error:
            raise InputError(str(error)) from None


def with_knobs(
    variants: Mapping[str, type[Section]], default: str | None, *, null: bool
) -> Callable[[type[S]], type[S]]:
    """Return a class decorator that gives a section the names and knobs of variants as keys.

    Args:
        variants: By name.
        default: The ``kind`` where none is given; ``None`` demands one.
        null: Whether a knob that is not given is null in the section; otherwise it has its default there, where all
            variants with a knob of this name agree on one.
    """

    def decorate(section: type[S]) -> type[S]:
        kind = copy(section.model_fields["kind"])
        kind.default = default
        fields: dict[str, Any] = {"kind": (getitem(Literal, tuple(variants)), kind)}
        for variant in variants.values():
            for name in variant.model_fields:
                if name not in section.model_fields and name not in fields:
                    fields[name] = _key(name, variants, null=null)
        made: type[S] = create_model(section.__name__, __base__=section, __module__=section.__module__, **fields)
        made.__doc__ = section.__doc__
        return made

    return decorate


class Kinded(Section):
    """A variant as a section of a recipe: the variant itself, with its name as ``kind``."""

    kind: str
    """Its name."""


def as_sections(variants: Mapping[str, type[Section]], default: str | None = None) -> dict[str, type[Section]]:
    """Return the variants as sections of a recipe, by name.

    Args:
        variants: By name.
        default: Name of the one whose ``kind`` need not be given in Python.
    """
    sections: dict[str, type[Section]] = {}
    for name, variant in variants.items():
        kind: Any = Field(name if name == default else ..., description=f"``{name}``.")
        fields: dict[str, Any] = {"kind": (getitem(Literal, name), kind)}
        own: dict[str, Any] = {
            "__base__": (variant, Kinded),
            "__module__": variant.__module__,
            "__doc__": variant.__doc__,
        }
        sections[name] = create_model(variant.__name__, **own, **fields)
    return sections


def one_of(sections: Collection[type[Section]], custom: type[CustomVariant]) -> Any:
    """Return the annotation of a key that holds one variant: a registered one, or one of the user's own.

    What is read is a variant with its settings; only one of the user's own must still be loaded.

    Args:
        sections: As :func:`as_sections` makes them.
        custom: The section for one of the user's own.
    """
    return Annotated[getitem(Union, (*sections, custom)), Field(discriminator="kind")]


def choose(data: Any) -> str:
    """Return the tag of a section, as data or built: custom, or registered."""
    kind = data.get("kind") if isinstance(data, Mapping) else getattr(data, "kind", None)
    return CUSTOM if kind == CUSTOM else REGISTERED


def _key(name: str, variants: Mapping[str, type[Section]], *, null: bool) -> tuple[Any, FieldInfo]:
    """A knob as a key: bounds and words of the first variant that has it."""
    having = owners(variants, name)
    own = [variants[owner].model_fields[name] for owner in having]
    key = copy(own[0])
    key.description = f"{', '.join(f'``{owner}``' for owner in having)}: {own[0].description}"
    if null or any(field.default != own[0].default for field in own):
        key.default, key.default_factory = None, None
        return Optional[own[0].annotation], key  # noqa: UP045 - of a value
    return own[0].annotation, key
