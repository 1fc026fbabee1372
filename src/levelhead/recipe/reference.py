"""The page of all recipe keys, made from the recipe's JSON schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from levelhead.recipe.recipe import Recipe

Schema = Mapping[str, Any]

_INTRODUCTION = """# Recipe keys

Every key of a recipe, with its type, its default and what it does. The page is made from the code
(`python -m levelhead.recipe --page > docs/recipe.md`); the same as a JSON schema, for editors, is
[recipe.schema.json](recipe.schema.json). `levelhead train RECIPE --print-recipe` prints a recipe with every default
written out.
"""


def page() -> str:
    """Return the page as Markdown: the top level first, then each section where a recipe first names it."""
    schema = Recipe.model_json_schema()
    definitions: Schema = schema["$defs"]
    parts = [_INTRODUCTION, "## The top level\n\n" + _table(schema, definitions)]
    for name, places in _sections(schema, definitions).items():
        section = definitions[name]
        if "properties" not in section:
            continue
        where = ", ".join(f"`{place}`" for place in places)
        parts.append(
            f"## {name}\n\nAt {where}. {_sentence(section.get('description', ''))}\n\n" + _table(section, definitions)
        )
    return "\n".join(parts)


def _sections(schema: Schema, definitions: Schema) -> dict[str, list[str]]:
    """Return each section's name with the keys at which it may stand, in the order in which a reader meets them."""
    places: dict[str, list[str]] = {}

    def visit(section: Schema, path: str) -> None:
        for key, value in section.get("properties", {}).items():
            here = f"{path}.{key}" if path else key
            for name, suffix in _references(value):
                place = here + suffix
                first = name not in places
                if place not in places.setdefault(name, []):
                    places[name].append(place)
                if first:
                    visit(definitions[name], place)

    visit(schema, "")
    return places


def _references(value: Any, suffix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the sections that a key may hold, with ``[]`` where it holds a list of them."""
    if not isinstance(value, Mapping):
        return
    if "$ref" in value:
        yield value["$ref"].rpartition("/")[2], suffix
    for option in (*value.get("anyOf", ()), *value.get("oneOf", ())):
        yield from _references(option, suffix)
    yield from _references(value.get("items"), suffix + "[]")
    yield from _references(value.get("additionalProperties"), suffix + ".NAME")


def _table(section: Schema, definitions: Schema) -> str:
    required = set(section.get("required", ()))
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, value in section.get("properties", {}).items():
        default = "required" if key in required else _default(value, definitions)
        meaning = _sentence(value.get("description", ""))
        rows.append(f"| `{key}` | {_cell(_type(value))} | {default} | {_cell(meaning)} |")
    return "\n".join(rows) + "\n"


def _type(value: Schema) -> str:
    """Return a key's type in words: ``integer, 1 to 100``, ``text``, ``"a" or "b"``, a link to a section."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return "any value" if name == "JsonValue" else f"[{name}](#{name.lower()})"
    options = [*value.get("anyOf", ()), *value.get("oneOf", ())]
    if options:
        words = [_type(option) for option in options if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return ", ".join(f"`{option}`" for option in value["enum"])
    kind = value.get("type")
    if kind == "array":
        items = [value["items"]] if "items" in value else value.get("prefixItems", [])
        each = ", ".join(dict.fromkeys(_type(item) for item in items))
        return f"list of {each}" if items else "list"
    if kind == "object":
        inner = value.get("additionalProperties")
        return f"names to {_type(inner)}" if isinstance(inner, Mapping) and inner else "mapping"
    return {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false"}.get(
        str(kind), "any value"
    ) + _bounds(value)


def _bounds(value: Schema) -> str:
    low, above = value.get("minimum"), value.get("exclusiveMinimum")
    high, below = value.get("maximum"), value.get("exclusiveMaximum")
    below = below if below is not None and below < 10**12 else None
    parts = [
        *([f"from {_number(low)}"] if low is not None else [f"above {_number(above)}"] if above is not None else []),
        *([f"to {_number(high)}"] if high is not None else [f"below {_number(below)}"] if below is not None else []),
    ]
    return ", " + " ".join(parts) if parts else ""


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) and abs(value) < 10**12 else f"{value:g}"


def _default(value: Schema, definitions: Schema) -> str:
    if "default" not in value:
        return "see the section"
    default = value["default"]
    if isinstance(default, Mapping) and default:
        names = {name for name, _ in _references(value)}
        kind = default.get("kind")
        return f"`{kind}`" if kind else "see the section" if names & set(definitions) else f"`{json.dumps(default)}`"
    return "none" if default is None else f"`{json.dumps(default, ensure_ascii=False)}`"


def _sentence(text: str) -> str:
    """Return a docstring's text in one line, with Markdown's marks for code."""
    return " ".join(text.split()).replace("``", "`")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
