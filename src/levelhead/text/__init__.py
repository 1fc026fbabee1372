"""The only place where text and tokens meet."""
