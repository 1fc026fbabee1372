"""Judges of several temperaments, for ``bench/judges.py``."""
