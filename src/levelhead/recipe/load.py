"""From a YAML file, a dict and ``--set`` overrides to a validated :class:`Recipe`, and back."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from levelhead.documents import DocumentError, read_text
from levelhead.documents.yaml_text import load_yaml
from levelhead.errors import InputError
from levelhead.message import Phrase, joined
from levelhead.recipe import messages as say
from levelhead.recipe.recipe import Recipe
from levelhead.recipe.shipped import by_name, similar
from levelhead.section import OF_A_KEY

MOST_BYTES = 1 << 20
"""Bytes that a recipe may have."""


def load(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a YAML recipe, or one that ships by its name (``dual-tiny``), apply ``a.b=c`` overrides, and validate.

    Paths of data files, templates and reward files inside a recipe are relative to the current folder.

    Raises:
        InputError: The file is missing, is no YAML mapping, or has a key or value that does not fit.
    """
    path = Path(path)
    try:
        if (path / "recipe.yaml").is_file():
            raise InputError(say.AT(place=path, text=say.RUN_FOLDER(place=path)))
        text = read_text(path, MOST_BYTES, errors="strict")
    except FileNotFoundError:
        own = by_name(path.as_posix())
        if own is None:
            near = similar(path.as_posix())
            hint = say.SHIPS(near=near) if near else say.LISTED()
            raise InputError(say.AT(place=path, text=say.NO_RECIPE(hint=hint))) from None
        text = own.text
    except OSError as error:
        raise InputError(say.AT(place=path, text=say.UNREADABLE(why=error.strerror or error))) from None
    except UnicodeDecodeError as error:
        raise InputError(say.AT(place=path, text=say.UNREADABLE(why=error))) from None
    return parse(text, overrides, source=str(path))


def parse(text: str, overrides: Sequence[str] = (), source: str = "recipe") -> Recipe:
    """Validate a YAML document; ``source`` names it in errors."""
    try:
        data = load_yaml(text)
    except DocumentError as error:
        where = source if error.line is None else f"{source}:{error.line}"
        raise InputError(say.AT(place=where, text=error.args[0])) from None
    if not isinstance(data, dict):
        raise InputError(say.AT(place=source, text=say.NO_MAPPING(kind=type(data).__name__)))
    for override in overrides:
        _apply(data, override)
    return validate(data, source, overrides)


def validate(data: Mapping[str, Any], source: str = "recipe", overrides: Sequence[str] = ()) -> Recipe:
    """Make a recipe of a plain mapping.

    Args:
        data: Keys and values.
        source: Names the mapping in errors.
        overrides: ``a.b=c`` that were set in it; an error at one of them names it instead.

    Raises:
        InputError: With every wrong key, one a line; a misspelt key comes with the nearest known one.
    """
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        lines = [_explain(details, source, overrides) for details in error.errors()[:5]]
        raise InputError(joined(list(dict.fromkeys(lines)), "\n", "\n")) from None


def dump(recipe: Recipe) -> str:
    """Return the resolved recipe as YAML, every default written out."""
    return yaml.safe_dump(plain(recipe), sort_keys=False, allow_unicode=True)


def plain(recipe: Recipe) -> dict[str, Any]:
    """Return the resolved recipe as plain data, under the names of a YAML file."""
    return recipe.model_dump(mode="json", by_alias=True)


def schema() -> str:
    """Return the JSON schema of a recipe."""
    return json.dumps(Recipe.model_json_schema(), indent=2) + "\n"


def _apply(data: dict[str, Any], override: str) -> None:
    """Set one dotted key; list items are named by index (``tasks.0.weight=2``)."""
    key, separator, raw = override.partition("=")
    path = key.strip().split(".")
    if not separator or not all(path):
        raise InputError(say.SET(pair=override))
    try:
        value = load_yaml(raw)
    except DocumentError as error:
        raise InputError(say.SET_VALUE(pair=override[:80], why=error.args[0])) from None
    node: Any = data
    for depth, part in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(node, list):
            if not (part.isascii() and part.isdigit() and len(part) < 10) or int(part) >= len(node):
                raise InputError(say.SET_INDEX(pair=override, key=".".join(path[:depth]), n=len(node)))
            index: Any = int(part)
        elif isinstance(node, dict):
            index = part
        else:
            raise InputError(say.SET_SECTION(pair=override, key=".".join(path[:depth])))
        if last:
            node[index] = value
        else:
            if isinstance(node, dict) and node.get(index) is None:
                node[index] = {}
            node = node[index]


def _explain(error: ErrorDetails, source: str, overrides: Sequence[str]) -> Phrase:
    location = error["loc"] + ((error["ctx"]["key"],) if error["type"] == OF_A_KEY else ())
    *above, last = _walk(location) or [("(top level)", frozenset())]
    parts = [part for part, _ in (*above, last)]
    key = ".".join(parts)
    source = next((f"--set {_cut_text(text)}" for text in reversed(overrides) if _is_about(text, key)), source)
    if error["type"] == "extra_forbidden":
        keys = sorted({field.alias or name for model in last[1] for name, field in model.model_fields.items()})
        return say.UNKNOWN(place=source, key=key, hint=_hint(parts, keys))
    if error["type"] == "union_tag_not_found":
        key, text = f"{key}.kind", say.MISSING()
    elif error["type"] == "missing":
        text = say.MISSING()
    elif error["type"] == "union_tag_invalid":
        key, fields = f"{key}.kind", error["ctx"]
        text = say.ONE_OF(choices=fields["expected_tags"], value=fields["tag"])
    else:
        text, value = say.problem(error), error["input"]
        if isinstance(value, str | int | float | bool | None) and error["type"] != OF_A_KEY:
            text = say.VALUE(text=text, value=_cut(value))
    return say.OF_A_KEY(place=source, key=key, text=text)


def _is_about(override: str, key: str) -> bool:
    """Whether an override gave a key its value: it names the key, or a section that the key stands in."""
    name = override.partition("=")[0].strip()
    return key == name or key.startswith(f"{name}.")


def _hint(parts: list[str], keys: list[str]) -> str | Phrase:
    """Say what an unknown key is meant for: one that is spelt nearly so, or another trainer's word for one of ours."""
    from levelhead.recipe import trainers

    if theirs := trainers.words().get(parts[-1]):
        return say.THEIRS(peer=theirs[1], theirs=parts[-1], ours=theirs[0])
    near = difflib.get_close_matches(parts[-1], keys, n=1, cutoff=0.5)
    return say.NEAR(near=".".join([*parts[:-1], near[0]])) if near else ""


def _cut(value: Any) -> str:
    """A value as it stands in a message: not longer than a line of a terminal."""
    return _cut_text("a number of many digits" if isinstance(value, int) and abs(value) > 10**30 else repr(value))


def _cut_text(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _walk(location: Iterable[int | str]) -> list[tuple[str, frozenset[type[BaseModel]]]]:
    """Keys of the file on the way to a location, each with the sections that it may be a key of.

    Where a key may hold several kinds of section, the part after it is the ``kind`` and no key of the file.
    """
    path: list[tuple[str, frozenset[type[BaseModel]]]] = []
    models: frozenset[type[BaseModel]] = frozenset({Recipe})
    for part in location:
        variants = frozenset(model for model in models if part in _kinds(model))
        if isinstance(part, str) and len(models) > 1 and variants:
            models = variants
            continue
        path.append((str(part), models))
        if isinstance(part, str):
            fields = (model.model_fields[part] for model in models if part in model.model_fields)
            models = frozenset(section for field in fields for section in _direct(field.annotation))
    return path


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    kind = model.model_fields.get("kind")
    return () if kind is None else get_args(kind.annotation)


def _direct(annotation: Any) -> set[type[BaseModel]]:
    """Sections named by an annotation itself, not by their fields."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {section for argument in get_args(annotation) for section in _direct(argument)}
