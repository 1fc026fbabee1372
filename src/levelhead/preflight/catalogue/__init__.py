"""The explanations of the checks, a module a family."""
