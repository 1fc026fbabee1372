"""Sampling: the generator protocol, the local generator, sampling controls."""
