"""Checkers that several data sets share: equality of mathematics, programs under tests, spans of text, letters."""
