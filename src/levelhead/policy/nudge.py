"""Weights that are changed for a moment and put back to the bit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from levelhead.objective.numerics import local
from levelhead.policy.policy import Policy

MOST = 1 << 20
"""Entries that are changed at most unless all are, at least one parameter: a copy of them is kept."""
_NOISE = 1 << 20
"""Random numbers sampled for one parameter, at most; larger parameters get them again and again."""


@contextlib.contextmanager
def nudged(
    policy: Policy, strength: float = 0.5, seed: int = 0, *, everything: bool = False
) -> Iterator[Sequence[tuple[nn.Parameter, Tensor]]]:
    """Add seeded noise to the last trained parameters inside, or to all, and restore them exactly.

    Args:
        policy: Whose weights are changed.
        strength: Standard deviation of the noise, relative to that of each parameter (0.02 where it is constant).
        seed: Of the noise.
        everything: Whether all trained parameters are changed, relative to their root mean square, so that each of
            them tells.  A copy of all is kept: half of what AdamW's moments take.

    Yields:
        The parameters that are changed, with their values from before.
    """
    parameters = list(reversed(policy.parameters)) if everything else _last(policy)
    before = [local(parameter).detach().clone() for parameter in parameters]
    generator = torch.Generator().manual_seed(seed)
    try:
        with torch.no_grad():
            for parameter in parameters:
                scale = _size(parameter, squared=everything) or 0.04
                noise = torch.randn(min(parameter.numel(), _NOISE), generator=generator) * strength * scale
                here = local(parameter)
                flat = noise.to(here.device, here.dtype)
                times = -(-here.numel() // len(flat))
                here.add_(flat.repeat(times)[: here.numel()].view_as(here))
        yield list(zip(parameters, before, strict=True))
    finally:
        with torch.no_grad():
            for parameter, old in zip(parameters, before, strict=True):
                local(parameter).copy_(old)


def _last(policy: Policy) -> list[nn.Parameter]:
    """The last trained parameters, up to a bound of entries."""
    last: list[nn.Parameter] = []
    for parameter in reversed(policy.parameters):
        if last and sum(p.numel() for p in last) + parameter.numel() > MOST:
            break
        last.append(parameter)
    return last


def _size(parameter: nn.Parameter, *, squared: bool) -> float:
    """Root mean square of a parameter's entries, or their standard deviation; 0 where there is none."""
    values = local(parameter).detach().float()
    if squared:
        return float(values.square().mean().sqrt()) if values.numel() else 0.0
    return float(values.std()) if values.numel() > 1 else 0.0
