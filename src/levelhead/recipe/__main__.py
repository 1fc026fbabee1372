"""``python -m levelhead.recipe > docs/recipe.schema.json``: the JSON schema of a recipe."""

import sys

from levelhead.recipe.load import schema

sys.stdout.write(schema())
