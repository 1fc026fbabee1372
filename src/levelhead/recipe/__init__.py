"""What the user asked for: validated sections, YAML loading, ``--set`` overrides, the JSON schema."""

from levelhead.recipe.recipe import Recipe

__all__ = ["Recipe"]
