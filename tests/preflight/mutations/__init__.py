"""Ways to break what each check guards, a module a family."""
