"""Pairs of tasks whose gradients conflict, for ``bench/merging.py``."""
