"""Sampling: the sampler protocol, the in-process sampler, logits processors."""
