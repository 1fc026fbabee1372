"""A recipe, a reward file and its test, written from a data file and a model: what ``levelhead init`` does."""
