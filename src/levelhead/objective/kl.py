"""Estimators of the KL divergence from the policy to its reference (Schulman 2020, "Approximating KL divergence").

With the log-ratio ``d = logp - ref_logp`` of a token that the policy drew:

- ``k1 = d``: unbiased, may be negative, high variance;
- ``k2 = d**2 / 2``: biased to third order; its gradient on policy is the unbiased gradient of the KL;
- ``k3 = exp(-d) - 1 + d``: unbiased, never negative.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]


def estimate(name: str, logp_nt: Tensor, ref_logp_nt: Tensor) -> Tensor:
    """Return the per-token KL estimate, shape (n, t), in nats.

    Args:
        name: ``k1``, ``k2`` or ``k3``.
        logp_nt: Log-probabilities of the drawn tokens under the policy.
        ref_logp_nt: The same under the reference; no gradient flows into it.

    Raises:
        ValueError: If the name is unknown or the shapes differ.
    """
    if logp_nt.shape != ref_logp_nt.shape:
        raise ValueError(f"kl: logp has shape {tuple(logp_nt.shape)} and ref_logp {tuple(ref_logp_nt.shape)}")
    gap_nt = logp_nt - ref_logp_nt.detach()
    if name == "k1":
        return gap_nt
    if name == "k2":
        return gap_nt.square() / 2
    if name == "k3":
        return torch.expm1(-gap_nt) + gap_nt
    raise ValueError(f"unknown KL estimator {name!r}; choose k1, k2 or k3")
