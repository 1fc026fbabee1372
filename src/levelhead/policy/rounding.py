"""How far rounding alone drives two computations apart, and what it takes to compute without it."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from levelhead.objective.numerics import local
from levelhead.policy import four_bit
from levelhead.policy.backends.base import TREES
from levelhead.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two computations of one log-probability may lie apart, in nats.

    Attributes:
        mean: Over the tokens of a batch.
        most: Of a single token.
    """

    mean: float
    most: float


_TOLERANCES = {
    torch.float32: Tolerance(2e-4, 2e-3),
    torch.float16: Tolerance(1e-2, 0.15),
    torch.bfloat16: Tolerance(5e-2, 0.75),
}


def tolerance(policy: Policy, logits: float = 0.0) -> Tolerance:
    """Return what rounding explains in the policy's present compute type, or in that of its weights if coarser.

    Args:
        policy: Whose log-probabilities are compared.
        logits: Size of its largest logits over the temperature, where it is known: each is rounded by up to half the
            spacing of numbers there.
    """
    kind = max((policy.compute_dtype, policy.base.dtype), key=lambda dtype: _TOLERANCES[dtype].most)
    least, rounded = _TOLERANCES[kind], torch.finfo(kind).eps / 2 * logits
    return Tolerance(max(least.mean, rounded), max(least.most, _LUCKLESS * rounded))


LOGITS = 20.0
"""Size of a pretrained model's largest logits: in bfloat16 each is rounded by up to 0.06 there (SmolLM2-135M)."""
_LUCKLESS = 6
"""Times its mean that the error of a single token may have."""
_MULTIPLIED_IN = {"high": torch.float16, "medium": torch.bfloat16}
"""Type that rounds as float32 products do at each of torch's precisions; TF32 keeps as many bits as float16."""


def coarsest(policy: Policy) -> torch.dtype:
    """Return the coarsest type that a forward or backward pass of the policy rounds to; float32 where none is coarser.

    Looks at the compute type, at every weight, and on a GPU at whether float32 products are made in TF32.
    """
    weights = {p.dtype for p in policy.model.parameters() if p.is_floating_point()}
    kinds = {policy.compute_dtype, *weights, torch.float32}
    if policy.device.type == "cuda":
        kinds.add(_MULTIPLIED_IN.get(torch.get_float32_matmul_precision(), torch.float32))
    coarse: torch.dtype = max(kinds, key=lambda kind: torch.finfo(kind).eps)
    return coarse


@dataclass(frozen=True, slots=True)
class Visible:
    """What a computing type lets through of a change of weights.

    Attributes:
        norm: Norm of the change of the rounded weights, as a share of that of the weights themselves.
        cosine: Cosine of the two changes.
    """

    norm: float
    cosine: float


def some_entries(weights: Sequence[Tensor], most: int = 4096) -> list[Tensor]:
    """Return copies of at most so many entries of each weight, evenly spaced; of this process's pieces."""
    flat = [local(weight).detach().flatten() for weight in weights]
    return [weight[:: max(1, -(-weight.numel() // most))].clone() for weight in flat if weight.numel()]


def visible_change(
    before: Sequence[Tensor], after: Sequence[Tensor], sizes: Sequence[float], kind: torch.dtype
) -> Visible:
    """Compare the change of weights with that of the weights rounded to a type.

    A product whose type has fewer bits than the weights rounds them first, so that sampler, trainer and reference see
    the rounded weights alone; an update under half the spacing of numbers there is not seen (arXiv 2602.03839).

    Args:
        before: Entries of each weight.
        after: The same entries later.
        sizes: Numbers of entries that each of these stands for.
        kind: The computing type.
    """
    both = whole = seen = 0.0
    for old, new, size in zip(before, after, sizes, strict=True):
        change = new.double() - old.double()
        rounded = new.to(kind).double() - old.to(kind).double()
        part = size / len(old)
        both += part * float((change * rounded).sum())
        whole += part * float(change.square().sum())
        seen += part * float(rounded.square().sum())
    if not whole or not seen:
        return Visible(0.0 if whole else 1.0, 0.0 if whole else 1.0)
    return Visible((seen / whole) ** 0.5, both / (whole * seen) ** 0.5)


def foresee_visible(weights: Sequence[Tensor], kind: torch.dtype, rate: float, updates: int = 1) -> Visible:
    """Foresee what a computing type lets through of so many updates of AdamW.

    An update changes an entry by about the learning rate; those of noisy gradients add up like a random walk, to the
    rate times the root of their number.  Of 14 updates of SmolLM2-135M at 1e-5 in bfloat16 this foresees a cosine of
    0.33 and a norm of 0.43; 0.32 and 0.43 were measured (docs/precision.md).

    Args:
        weights: That are trained, as they are before the first update.
        kind: The computing type.
        rate: The learning rate.
        updates: Their number.
    """
    generator = torch.Generator().manual_seed(0)
    before = [entries.float() for entries in some_entries(weights)]
    noise = (torch.randn(entries.shape, generator=generator).to(entries.device) for entries in before)
    after = [entries + rate * updates**0.5 * each for entries, each in zip(before, noise, strict=True)]
    return visible_change(before, after, [float(weight.numel()) for weight in weights if weight.numel()], kind)


@contextlib.contextmanager
def full_products() -> Iterator[None]:
    """Multiply float32 matrices in float32 inside, whatever has been allowed."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def why_not_exact(policy: Policy) -> str | None:
    """Return why :func:`exact_policy` is not to be had, in a few words; ``None`` where it is.

    A float32 policy needs trained weights that are float32, frozen ones that can be converted, and memory for them.
    """
    parameters = list(policy.model.parameters())
    odd = {p.dtype for p in parameters if p.requires_grad and p.dtype not in (torch.float32, torch.float64)}
    odd |= {p.dtype for p in parameters if not p.is_floating_point() and not four_bit.is_packed(p)}
    if odd:
        return f"some weights are {str(odd.pop()).removeprefix('torch.')}"
    if policy.sharded:
        coarse = any(_coarse(p) for p in parameters)
        return "the frozen weights are divided over processes in a coarser type" if coarse else None
    needed = sum(4 * p.numel() for p in parameters if _coarse(p))
    free = free_bytes(policy.device)
    if free is not None and needed > 0.8 * free:
        return f"the frozen weights take {needed / 2**30:.1f} GiB in float32, and {free / 2**30:.1f} GiB are free"
    return None


def exact_policy(policy: Policy) -> Policy:
    """Return a policy of the same trained weights, the very tensors, that computes in float32.

    Its gradients arrive in the same leaves.  Frozen weights of a coarser type are converted, at 4 bytes each; those in
    four bits stay, and are multiplied in float32.  Ask :func:`why_not_exact` first.
    """
    if policy.sharded:  # weights that are divided over processes are not copied: all of them are float32
        exact = copy.copy(policy)
        exact.compute_dtype = torch.float32
        return exact
    _ = policy.backend  # chosen before the copy is made, which then computes its attention in the same way
    memo: dict[int, Any] = {id(p): _widened(p) for p in policy.model.parameters()}
    model = copy.deepcopy(policy.model, memo)
    for buffer in model.buffers():
        if buffer.is_floating_point() and buffer.dtype.itemsize < 4:
            buffer.data = buffer.data.float()
    four_bit.compute_in(model, torch.float32)
    exact = Policy(model, policy.codec)
    if exact.base.config._attn_implementation not in ("sdpa", "eager", TREES):
        exact.base.config._attn_implementation = "sdpa"  # kernels made for half precision compute in nothing else
    exact.run_like(policy)
    exact._reference = policy._reference
    return exact


def _widened(weight: nn.Parameter) -> nn.Parameter:
    """The weight itself, or a frozen one in float32 where it is of a coarser type."""
    if four_bit.is_packed(weight):
        packed: nn.Parameter = four_bit.unpacks_to(weight, torch.float32)
        return packed
    if weight.requires_grad or not _coarse(weight):
        return weight
    return nn.Parameter(weight.detach().float(), requires_grad=False)


def _coarse(weight: nn.Parameter) -> bool:
    """Whether a weight rounds more than float32, and has a float32 value of its own."""
    return weight.is_floating_point() and weight.dtype.itemsize < 4


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that can still be had on a device; ``None`` where nobody says."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + unused)
    if device.type != "cpu":
        return None
    try:
        free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")]
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")] or free
        limit, used = (Path("/sys/fs/cgroup", name).read_text(encoding="utf-8") for name in _CGROUP)
        free += [int(limit) - int(used)] if limit.strip().isdigit() else []
    except (ValueError, OSError):
        return None if not free else min(free)
    return min(free)


_CGROUP = ("memory.max", "memory.current")
MOST_NUDGED = 1 << 20
"""Entries that :func:`nudged` changes at most, at least one parameter: a copy of them is kept."""


@contextlib.contextmanager
def nudged(policy: Policy, strength: float, seed: int = 0) -> Iterator[None]:
    """Add seeded noise to the last trained parameters inside, up to :data:`MOST_NUDGED` entries; put back to the bit.

    Args:
        policy: Whose weights are changed.
        strength: Standard deviation of the noise, relative to that of each parameter (0.02 where it is constant).
        seed: Of the noise.
    """
    last: list[nn.Parameter] = []
    for parameter in reversed(policy.parameters):
        if last and sum(p.numel() for p in last) + parameter.numel() > MOST_NUDGED:
            break
        last.append(parameter)
    before = [local(parameter).detach().clone() for parameter in last]
    generator = torch.Generator().manual_seed(seed)
    try:
        with torch.no_grad():
            for parameter in last:
                here = local(parameter)
                scale = (float(here.float().std()) if here.numel() > 1 else 0.0) or 0.04
                noise = torch.randn(min(parameter.numel(), MOST_NUDGED), generator=generator) * strength * scale
                flat = noise.to(here.device, here.dtype)
                times = -(-here.numel() // len(flat))
                here.add_(flat.repeat(times)[: here.numel()].view_as(here))
        yield
    finally:
        with torch.no_grad():
            for parameter, old in zip(last, before, strict=True):
                local(parameter).copy_(old)
