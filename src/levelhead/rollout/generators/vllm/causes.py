"""Why a server that has been given the weights does not compute with them: each known cause is tested by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from levelhead.errors import EngineError
from levelhead.policy.policy import Policy
from levelhead.policy.rounding import coarsest
from levelhead.rollout.generators.vllm.probe import ROUNDINGS, Account, Gap, contexts, logprobs
from levelhead.rollout.generators.vllm.weights import tied_head, whole

Draw = Callable[[Sequence[tuple[int, ...]], bool], Awaitable[Account]]
"""Has the server continue some contexts; of the model below an adapter where the flag is set."""
Score = Callable[[Callable[[], list[tuple[float, ...]]]], Awaitable[list[tuple[float, ...]]]]
"""Computes in a thread that may."""


@dataclass(frozen=True, slots=True)
class Patient:
    """A server whose probe has failed, and what it takes to find out why.

    Attributes:
        url: Of the server.
        label: Version that it was given.
        policy: That it should hold.
        account: What it said.
        gap: How far off that is.
        bound: Largest gap that would be none.
        head: The tied output embedding as it was at the last good sync; ``None`` where it is not tied.
        draw: Asks the server again.
        compute: Computes in a thread that may.
        push: Sends the weights again.
        beside_base: Whether the server has the model below the adapter too, under its own name.
    """

    url: str
    label: str
    policy: Policy
    account: Account
    gap: Gap
    bound: float
    head: Tensor | None
    draw: Draw
    compute: Score
    push: Callable[[], Awaitable[None]]
    beside_base: bool


async def diagnose(patient: Patient) -> EngineError:
    """Test the known causes, the cheapest first, and return the error that names the one that fits."""
    mismatch = (
        f"{patient.url}: after the weight sync its log-probabilities are {patient.gap.mean:.2g} nats a token off the "
        f"trainer's on average ({patient.gap.most:.2g} at most; allowed {patient.bound:.2g})"
    )
    for test in (_stale_cache, _tied_head, _coarse, _other_base, _half_update):
        fitting = await test(patient)
        if fitting is not None:
            cause, why = fitting
            return EngineError(f"{mismatch}. {why}", cause)
    return EngineError(
        f"{mismatch}. No known cause fits, and sending the weights again does not help: it serves another model "
        "(another architecture, configuration or quantisation); start it with the command that `levelhead serve "
        "policy` prints",
        "other-model",
    )


async def _stale_cache(patient: Patient) -> tuple[str, str] | None:
    """Contexts that no cache can hold are right, while others are wrong."""
    if not await _agrees(patient, contexts(patient.policy, patient.label)):
        return None
    return "stale-cache", (
        "Contexts that it has not seen before are right: its prefix cache was not reset after the update, and holds "
        "keys and values of older weights; update vllm, or start it with --no-enable-prefix-caching"
    )


async def _tied_head(patient: Patient) -> tuple[str, str] | None:
    """The new weights under the output embedding of the last sync say what the server says."""
    head = patient.head
    if head is None:
        return None

    def under_old_head() -> list[tuple[float, ...]]:
        with patient.policy.under_head(head):
            return logprobs(patient.policy, patient.account.pairs)

    old = await patient.compute(under_old_head)
    if Gap.between(old, patient.account.logprobs).mean > patient.bound:
        return None
    return "tied-head", (
        "The new weights with the lm_head of the sync before say the same: the server keeps its tied lm_head apart "
        "from the embedding and has not taken it over; update vllm and levelhead on the server"
    )


async def _coarse(patient: Patient) -> tuple[str, str] | None:
    """The policy, computed in bfloat16, is as far off."""
    if coarsest(patient.policy) != torch.float32:
        return None

    def in_bfloat16() -> list[tuple[float, ...]]:
        before, patient.policy.compute_dtype = patient.policy.compute_dtype, torch.bfloat16
        try:
            return logprobs(patient.policy, patient.account.pairs)
        finally:
            patient.policy.compute_dtype = before

    exact = await patient.compute(lambda: logprobs(patient.policy, patient.account.pairs))
    rounding = Gap.between(exact, await patient.compute(in_bfloat16)).mean
    if not patient.bound < patient.gap.mean <= ROUNDINGS * rounding:
        return None
    return "mismatch", (
        f"bfloat16 alone moves this policy by {rounding:.2g}: the server computes in a coarser type than the trainer; "
        "start it with --dtype float32, set model.dtype: bfloat16, or raise generator.max_mismatch"
    )


async def _other_base(patient: Patient) -> tuple[str, str] | None:
    """The model below the adapter is another one."""
    policy = patient.policy
    if not patient.beside_base:
        return None
    try:
        account = await patient.draw(contexts(policy, f"{patient.label} base"), True)
    except EngineError:
        return None

    def base() -> list[tuple[float, ...]]:
        with policy.model.disable_adapter():
            return logprobs(policy, account.pairs)

    gap = Gap.between(await patient.compute(base), account.logprobs)
    if gap.mean <= patient.bound:
        return None
    return "other-model", (
        f"Without the adapter it is {gap.mean:.2g} off as well: it does not serve the model that model.name names; "
        "start it with the command that `levelhead serve policy` prints"
    )


async def _half_update(patient: Patient) -> tuple[str, str] | None:
    """Sending everything again mends it."""
    try:
        await patient.push()
    except EngineError as error:
        return error.cause, f"Sending the weights again fails: {error}"
    if not await _agrees(patient, [context for context, _ in patient.account.pairs]):
        return None
    return "half-update", (
        "Sending the weights again mends it: the update was applied in half; look at the server's log for what broke "
        "it off"
    )


async def _agrees(patient: Patient, asked: Sequence[tuple[int, ...]]) -> bool:
    account = await patient.draw(asked, False)
    ours = await patient.compute(lambda: logprobs(patient.policy, account.pairs))
    return Gap.between(ours, account.logprobs).mean <= patient.bound


def head_copy(policy: Policy) -> Tensor | None:
    """Return a copy of a tied output embedding, in host memory; ``None`` where it is not tied.  A collective."""
    tied = tied_head(policy)
    return None if tied is None else whole(tied[1].detach()).to("cpu", copy=True)
