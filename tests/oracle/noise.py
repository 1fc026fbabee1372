"""All weights of a policy changed for a moment, so that each of them shows, and put back to the bit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from levelhead.objective.numerics import local
from levelhead.policy.policy import Policy

STRENGTH = 0.5
"""Standard deviation of the noise, relative to the root mean square of each parameter."""


@contextlib.contextmanager
def shaken(policy: Policy) -> Iterator[Sequence[tuple[nn.Parameter, Tensor]]]:
    """Add noise to all trained parameters inside; yields them with their values from before."""
    parameters = list(reversed(policy.parameters))
    before = [local(parameter).detach().clone() for parameter in parameters]
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for parameter in parameters:
                here = local(parameter)
                scale = float(here.float().square().mean().sqrt()) if here.numel() else 0.0
                noise = torch.randn(here.shape, generator=generator) * STRENGTH * (scale or 0.04)
                here.add_(noise.to(here.device, here.dtype))
        yield list(zip(parameters, before, strict=True))
    finally:
        with torch.no_grad():
            for parameter, old in zip(parameters, before, strict=True):
                local(parameter).copy_(old)
