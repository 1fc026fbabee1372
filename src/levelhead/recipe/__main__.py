"""``python -m levelhead.recipe > docs/recipe.schema.json``: a recipe's JSON schema; with ``--page``, docs/recipe.md."""

import sys

from levelhead.recipe.load import schema
from levelhead.recipe.reference import page

sys.stdout.write(page() if sys.argv[1:] == ["--page"] else schema())
