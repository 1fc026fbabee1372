"""What the user asked for: validated sections, YAML loading, ``--set`` overrides, the JSON schema."""

from levelhead.recipe.load import dump, load, parse, plain, schema, validate
from levelhead.recipe.recipe import Recipe

__all__ = ["Recipe", "dump", "load", "parse", "plain", "schema", "validate"]
