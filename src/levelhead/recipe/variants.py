"""Recipe sections that hold one of several variants, registered ones or one of the user's own.

Each variant is a section of its own: the variant's settings, with its name as ``kind``, and the keys that all variants
of its family share.  A key of the recipe that may hold any of them is a union told apart by ``kind``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from operator import getitem
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    create_model,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from levelhead.errors import InputError
from levelhead.objective.registry import build, owners
from levelhead.section import OF_A_KEY, Section
from levelhead.usercode import load_class

V = TypeVar("V", bound=Section)
CUSTOM = "custom"
"""The ``kind`` of a variant of the user's own."""


class Kinded(Section):
    """A variant as a section of a recipe: the variant itself, with its name as ``kind``."""

    FIRST: ClassVar[tuple[str, ...]] = ("kind",)
    """Keys that a written recipe begins the section with, in this order."""
    LAST: ClassVar[tuple[str, ...]] = ()
    """Keys that it ends it with; the others stand between, as they are declared."""
    FAMILY: ClassVar[Mapping[str, type[Section]]] = {}
    """All variants of the family, by name."""
    WROTE_DEFAULTS: ClassVar[bool] = False
    """Whether recipes that earlier versions wrote out have the keys of other kinds at their defaults, and not null."""

    kind: str
    """Its name."""

    if TYPE_CHECKING:

        def __getattr__(self, setting: str) -> Any:
            """Settings are fields that mypy cannot see."""

    @model_validator(mode="before")
    @classmethod
    def _keys_are_of_this_kind(cls, data: Any) -> Any:
        """Refuse a key of another kind, and say whose it is.

        Recipes that earlier versions wrote out have the keys of all kinds, null or at their defaults: those say
        nothing and are left out.
        """
        if not isinstance(data, dict):
            return data
        own_keys = {}
        for key, value in data.items():
            having = owners(cls.FAMILY, key)
            default = cls.FAMILY[having[0]].model_fields[key].default if having else None
            if having and value is None and default is not None:
                continue
            if having and key not in cls.model_fields:
                defaults = [cls.FAMILY[one].model_fields[key].default for one in having]
                if value is None or (cls.WROTE_DEFAULTS and value in defaults):
                    continue
                (own,) = get_args(cls.model_fields["kind"].annotation)
                text = f"is a key of kind {', '.join(having)}, and none of {own}: remove it, or change kind"
                zh = f"是 kind {'、'.join(having)} 的键，{own} 没有：请删去，或改 kind"
                raise PydanticCustomError(OF_A_KEY, text, {"key": key, "zh": zh})
            own_keys[key] = value
        return own_keys

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        """Build the variant where the section is not one itself, for what it says of its settings."""
        variant = self.FAMILY.get(self.kind)
        if variant is not None and not isinstance(self, variant):
            build(variant, self.settings_of(variant), "")
        return self

    @model_serializer(mode="wrap")
    def _in_order(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        between = [key for key in data if key not in self.FIRST and key not in self.LAST]
        return {key: data[key] for key in (*self.FIRST, *between, *self.LAST) if key in data}

    def settings_of(self, variant: type[Section]) -> dict[str, Any]:
        """Return the keys of this section that a variant has as settings."""
        return {name: getattr(self, name) for name in variant.model_fields if name in type(self).model_fields}


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
        settings = {name: value for name, value in (shared or {}).items() if name in variant.model_fields}
        try:
            return build(variant, settings | self.settings, self.path, f"{key}.settings")
        except ValueError as error:
            raise InputError(str(error)) from None


def as_sections(
    variants: Mapping[str, type[Section]],
    default: str | None = None,
    base: type[Kinded] = Kinded,
    more: Mapping[str, Mapping[str, tuple[Any, Any]]] | None = None,
) -> dict[str, type[Kinded]]:
    """Return the variants as sections of a recipe, by name.

    They are the variants themselves, and what their base is: nothing is copied from a section to what it asks for.
    Where an attribute of a variant (an aggregator's ``scale``) has the name of a shared key, they have its keys alone.

    Args:
        variants: By name.
        default: Name of the one whose ``kind`` need not be given in Python.
        base: Has the keys that all of them share.
        more: Further keys of single ones, as annotation and field.
    """
    sections: dict[str, type[Kinded]] = {}
    for name, variant in variants.items():
        kind: Any = Field(name if name == default else ..., description=f"``{name}``.")
        fields: dict[str, Any] = {"kind": (getitem(Literal, name), kind), **(more or {}).get(name, {})}
        apart = any(hasattr(variant, key) for key in base.model_fields.keys() - variant.model_fields.keys())
        if apart:
            fields = {key: (field.annotation, copy(field)) for key, field in variant.model_fields.items()} | fields
        own: dict[str, Any] = {
            "__base__": base if apart else (variant, base),
            "__module__": variant.__module__,
            "__doc__": variant.__doc__,
            # No class statement stands behind it; to look for one takes seconds where many modules are loaded.
            "__cls_kwargs__": {"use_attribute_docstrings": False},
        }
        suffix = base.__name__.removesuffix("Section") if base is not Kinded else ""
        sections[name] = create_model(f"{variant.__name__}{suffix}", **own, **fields)
        sections[name].FAMILY = variants
    return sections


def one_of(sections: Iterable[type[Section]], custom: type[CustomVariant], default: str | None = None) -> Any:
    """Return the annotation of a key that holds one variant: a registered one, or one of the user's own.

    What is read is a variant with its settings; only one of the user's own must still be loaded.

    Args:
        sections: As :func:`as_sections` makes them.
        custom: The section for one of the user's own.
        default: The kind of a section that names none; ``None`` where one must be named.
    """
    union: Any = Annotated[getitem(Union, (*sections, custom)), Field(discriminator="kind")]

    if default is None:
        return union
    return Annotated[union, BeforeValidator(lambda data: {"kind": default} | data if isinstance(data, dict) else data)]
