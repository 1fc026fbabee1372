"""What every estimator shares: the result record, the checks of the input, and centring that is exact.

Arrays are numpy arrays or torch tensors; the functions are written once against the array API.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

from array_api_compat import array_namespace, device, is_array_api_obj

Array: TypeAlias = Any
"""A numpy array, a torch tensor, or another array of the array API."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages of a batch, as an estimator returns them.

    Attributes:
        values_gk: Advantage of each rollout, shape (groups, K); exactly 0 in a group that is not live.
        has_signal_g: Which groups carry signal, boolean, shape (groups,).  The others can be left out of the update.
        tokens_gkt: Advantage of each token, shape (groups, K, tokens), from estimators that share credit out
            among tokens; ``values_gk`` is then the mean over a rollout's tokens.  ``None`` elsewhere.
        turns_gkn: Advantage of each turn, shape (groups, K, turns), from estimators that tell turns apart;
            ``values_gk`` is then the mean over a rollout's turns.  ``None`` elsewhere.
    """

    values_gk: Array
    has_signal_g: Array
    tokens_gkt: Array | None = None
    turns_gkn: Array | None = None


def as_floats(name: str, array: Array) -> tuple[ModuleType, Array]:
    """Return the array's namespace and the array in float32 or better.

    Nested sequences become float64 numpy arrays, integers the namespace's default float, half precision float32.

    Args:
        name: What to call the array in an error.
        array: Any shape.

    Raises:
        ValueError: An entry is NaN, infinite, or so large that a difference of two would overflow.
    """
    if not is_array_api_obj(array):
        import numpy as np  # recipes are read, and files looked for, before it is imported

        array = np.asarray(array, dtype=np.float64)
    xp = array_namespace(array)
    if not xp.isdtype(array.dtype, "real floating"):
        array = xp.astype(array, xp.__array_namespace_info__().default_dtypes()["real floating"])
    elif xp.finfo(array.dtype).bits < 32:
        array = xp.astype(array, xp.float32)
    usable = xp.abs(array) <= xp.finfo(array.dtype).max / 4
    if not bool(xp.all(usable)):
        bad = array[~usable]
        raise ValueError(f"{name} holds {float(bad[0])} ({bad.shape[0]} such entries); every entry must be finite")
    return xp, array


def check_rewards(rewards_gk: Array) -> tuple[ModuleType, Array]:
    """Return the namespace and the rewards as floats, shape (groups, K).

    Raises:
        ValueError: The shape is not (groups, K) with at least one group and K >= 2, or an entry is not finite.
    """
    xp, rewards_gk = as_floats("rewards_gk", rewards_gk)
    if rewards_gk.ndim != 2:
        raise ValueError(f"rewards_gk must have shape (groups, K), got {tuple(rewards_gk.shape)}")
    groups, k = rewards_gk.shape
    if groups < 1:
        raise ValueError("rewards_gk holds no group; at least one is needed")
    if k < 2:
        raise ValueError(f"a group needs at least 2 rollouts to be compared, got K={k}; raise the group size")
    return xp, rewards_gk


def check_like(name: str, array: Array, rewards_gk: Array, *, axes: int = 2) -> Array:
    """Return ``array`` as floats in the rewards' namespace, data type and device.

    Args:
        name: What to call the array in an error.
        array: Shape (groups, K), or (groups, K, tokens) with ``axes=3``.
        rewards_gk: The rewards it belongs to, as :func:`check_rewards` returned them.
        axes: Number of axes it must have.

    Raises:
        ValueError: The shape does not match the rewards', or an entry is not finite.
    """
    _, array = as_floats(name, array)
    if array.ndim != axes or tuple(array.shape[:2]) != tuple(rewards_gk.shape):
        wanted = "(groups, K)" if axes == 2 else "(groups, K, tokens)"
        shape = tuple(rewards_gk.shape)
        raise ValueError(f"{name} must have shape {wanted} with (groups, K) = {shape}, got {tuple(array.shape)}")
    return array_namespace(rewards_gk).asarray(array, dtype=rewards_gk.dtype, device=device(rewards_gk))


def check_lengths(lengths_gk: Array, rewards_gk: Array) -> Array:
    """Return completion lengths as floats, shape (groups, K).

    Raises:
        ValueError: The shape does not match the rewards', or a length is not positive.
    """
    lengths_gk = check_like("lengths_gk", lengths_gk, rewards_gk)
    shortest = float(array_namespace(lengths_gk).min(lengths_gk))
    if shortest <= 0:
        raise ValueError(f"lengths_gk holds {shortest:g}; every completion has at least one token")
    return lengths_gk


def contrast(xp: ModuleType, rewards_gk: Array) -> tuple[Array, Array]:
    """Return ``rewards - lowest`` of each group, shape (groups, K), and which groups hold two different rewards.

    Centring starts from the lowest reward and not from the mean: the mean of eight float32 0.7 is not 0.7, but
    0.7 - 0.7 is 0, so a group without contrast stays exactly 0 through everything that follows.
    """
    low_g1 = xp.min(rewards_gk, axis=1, keepdims=True)
    has_signal_g = xp.max(rewards_gk, axis=1) != low_g1[:, 0]
    return rewards_gk - low_g1, has_signal_g


def centre(xp: ModuleType, rewards_gk: Array) -> tuple[Array, Array]:
    """Return ``r - mean`` within each group, shape (groups, K), and the live groups."""
    above_gk, has_signal_g = contrast(xp, rewards_gk)
    return above_gk - xp.mean(above_gk, axis=1, keepdims=True), has_signal_g


def standardise(xp: ModuleType, rewards_gk: Array, *, ddof: int, eps: float) -> tuple[Array, Array]:
    """Return ``(r - mean) / (std + eps)`` within each group, shape (groups, K), and the live groups.

    The standard deviation is taken of rewards scaled to [0, 1], so that neither a gap of 1e-30 nor one of 1e30
    under- or overflows when squared; for K=2 the population form with ``eps=0`` is then exactly +1 and -1.
    """
    above_gk, has_signal_g = contrast(xp, rewards_gk)
    live_g1 = has_signal_g[:, None]
    span_g1 = xp.where(live_g1, xp.max(above_gk, axis=1, keepdims=True), xp.ones_like(above_gk[:, :1]))
    unit_gk = above_gk / span_g1
    centred_gk = unit_gk - xp.mean(unit_gk, axis=1, keepdims=True)
    std_g1 = xp.std(unit_gk, axis=1, keepdims=True, correction=ddof) + eps / span_g1
    return centred_gk / xp.where(live_g1, std_g1, xp.ones_like(std_g1)), has_signal_g


def batch_moments(xp: ModuleType, values_gk: Array, *, ddof: int, weights_gk: Array | None) -> tuple[Array, Array]:
    """Return ``value - mean`` over the whole batch, shape (groups, K), and the standard deviation, a scalar array.

    Args:
        xp: The arrays' namespace.
        values_gk: Any numbers, shape (groups, K).
        ddof: Degrees of freedom taken off the number of observations.
        weights_gk: How often each value counts (a completion's tokens), shape (groups, K); ``None`` once each.
    """
    low = xp.min(values_gk)
    span = xp.max(values_gk) - low
    unit_gk = (values_gk - low) / xp.where(span > 0, span, xp.ones_like(span))
    if weights_gk is None:
        mean, std = xp.mean(unit_gk), xp.std(unit_gk, correction=ddof)
    else:
        n = xp.sum(weights_gk)
        mean = xp.sum(weights_gk * unit_gk) / n
        std = xp.sqrt(xp.sum(weights_gk * (unit_gk - mean) ** 2) / (n - ddof))
    return (unit_gk - mean) * span, std * span


def divide(xp: ModuleType, values: Array, std: Array, eps: float) -> Array:
    """Return ``values / (std + eps)``; where ``std`` is 0 the values are 0 already and stay so."""
    return values / xp.where(std > 0, std + eps, xp.ones_like(std))
