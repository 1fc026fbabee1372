"""Prefix trees of a whole micro-batch in one attention kernel, for CUDA."""
