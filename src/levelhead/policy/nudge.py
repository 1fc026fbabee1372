"""Weights that are changed for a moment and put back to the bit."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

import torch

from levelhead.policy.policy import Policy

MOST = 1 << 20
"""Entries that are changed at most, at least one parameter: a copy of them is kept."""


@contextlib.contextmanager
def nudged(
    policy: Policy, strength: float = 0.5, seed: int = 0, leave_out: Collection[torch.nn.Parameter] = ()
) -> Iterator[None]:
    """Add seeded noise to the last trained parameters inside, and restore them exactly.

    Args:
        policy: Whose weights are changed.
        strength: Standard deviation of the noise, relative to that of each parameter (0.02 where it is constant).
        seed: Of the noise.
        leave_out: Parameters that stay as they are, while all others get the noise that they get without this.
    """
    spared = {id(parameter) for parameter in leave_out}
    chosen: list[torch.nn.Parameter] = []
    for parameter in reversed(policy.parameters):
        if chosen and sum(p.numel() for p in chosen) + parameter.numel() > MOST:
            break
        chosen.append(parameter)
    before = [parameter.detach().clone() for parameter in chosen]
    generator = torch.Generator().manual_seed(seed)
    try:
        with torch.no_grad():
            for parameter in chosen:
                scale = float(parameter.float().std()) if parameter.numel() > 1 else 0.0
                noise = torch.randn(parameter.shape, generator=generator) * strength * (scale or 0.04)
                if id(parameter) not in spared:
                    parameter.add_(noise.to(parameter.device, parameter.dtype))
        yield
    finally:
        with torch.no_grad():
            for parameter, old in zip(chosen, before, strict=True):
                parameter.copy_(old)
