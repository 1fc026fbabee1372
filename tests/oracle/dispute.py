"""Log-probabilities that one side tells of some tokens, and the policy's own, computed the slow and obvious way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from levelhead.policy.packing import MicroBatch
from levelhead.policy.policy import Policy
from levelhead.policy.rounding import Tolerance
from levelhead.recipe.sampling import Sampling
from levelhead.records import Turn

LABELS = 48
"""Tokens of a completion that are looked at."""


@dataclass(frozen=True, slots=True)
class Account:
    """What one side says of the tokens of one completion, and what it has read to say it.

    Attributes:
        read_ids: Tokens read: the context, and the completion without its last token.
        places: (t,) how many of them stand before each label.
        labels: (t,) tokens whose log-probabilities are told.
        logprobs: (t,) those.
        positions: Of the tokens read; empty where they are counted from 0.
    """

    read_ids: tuple[int, ...]
    places: tuple[int, ...]
    labels: tuple[int, ...]
    logprobs: tuple[float, ...]
    positions: tuple[int, ...] = ()

    @property
    def context_ids(self) -> tuple[int, ...]:
        """What stands before the first label."""
        return self.read_ids[: self.places[0]]

    def beginning(self) -> Account:
        """Its first labels, and what was read for them."""
        places = self.places[:LABELS]
        ids = self.read_ids[: max(places)]
        return replace(
            self, read_ids=ids, places=places, labels=self.labels[:LABELS], logprobs=self.logprobs[:LABELS],
        )  # fmt: skip


def recorded(turns: Sequence[Turn]) -> list[Account]:
    """Return what a sampler has recorded of its turns."""
    return [
        Account(
            turn.context_ids + turn.completion_ids[:-1],
            tuple(range(len(turn.context_ids), len(turn.context_ids) + len(turn.completion_ids))),
            turn.completion_ids,
            turn.logprobs,
        )
        for turn in turns
        if turn.completion_ids
    ]


def scored(scores: Iterable[tuple[MicroBatch, Tensor]]) -> list[Account]:
    """Return what a trainer has said of micro-batches, (m,) log-probabilities each, and what its model read there."""
    accounts = []
    for micro, logp in scores:
        parts = [values.tolist() for values in logp.detach().float().cpu().split(list(micro.lengths))]
        gathers = [where.tolist() for where in micro.gather.split(list(micro.lengths))]
        labels = [ids.tolist() for ids in micro.targets.split(list(micro.lengths))]
        for where, ids, values in zip(gathers, labels, parts, strict=True):
            seen = [_visible(micro, place) for place in where]
            longest = max(seen, key=len)
            if all(longest[: len(each)] == each for each in seen):
                places = tuple(len(each) for each in seen)
                accounts.append(Account(tuple(longest), places, tuple(ids), tuple(values)))
    return accounts


def _visible(micro: MicroBatch, place: int) -> list[int]:
    """Tokens that the state at a flat place of a micro-batch has read, itself included."""
    length = micro.input_ids.shape[1]
    row, at = divmod(place, length)
    ids: list[int] = micro.input_ids[row].tolist()
    if micro.nodes:
        above = sorted((n for n in micro.nodes if n.start <= at < n.end), key=lambda node: node.start)
        return [token for node in above for token in ids[node.start : min(node.stop, at + 1)]]
    if micro.attention_mask is None:
        return ids[: at + 1]
    return [ids[i] for i in micro.attention_mask[row, 0, at].nonzero()[:, 0].tolist()]


@dataclass(frozen=True, slots=True)
class Gap:
    """How far two accounts of the same tokens lie apart, in nats: on average, and at most."""

    mean: float
    most: float

    def within(self, allowed: Tolerance) -> bool:
        """Whether rounding explains it; never where something is not a number."""
        return self.mean <= allowed.mean and self.most <= allowed.most


@dataclass(frozen=True, slots=True)
class Dispute:
    """One side's account against the policy's.

    Attributes:
        who: The side, as ``the sampler``.
        policy: Whose log-probabilities they should be.
        accounts: What that side says.
        temperature: At which they should be.
        allowed: What rounding explains.
        drawn: (context, completion) of every completion that was sampled; empty where the accounts are the sampler's.
        own: The policy that the side computes with, where that is known.
        controls: Of the draws.
        old: Trained parameters with the values that they had before an update; empty where there was none.
        contexts: Of all prompts of the batch.
    """

    who: str
    policy: Policy
    accounts: Sequence[Account]
    temperature: float
    allowed: Tolerance
    drawn: Sequence[tuple[tuple[int, ...], tuple[int, ...]]] = ()
    own: Policy | None = None
    controls: Sampling = field(default_factory=Sampling)
    old: Sequence[tuple[nn.Parameter, Tensor]] = ()
    contexts: Sequence[tuple[int, ...]] = ()

    def tables(self, policy: Policy | None = None) -> list[Tensor]:
        """Return (t, v) logits of each account's labels by the plain computation of the policy, or of another one."""
        return [logits(policy or self.policy, account) for account in self.accounts]

    def apart(self, accounts: Sequence[Account] | None = None, policy: Policy | None = None) -> Gap:
        """Return how far the plain computation is from what is told.

        Args:
            accounts: Others than the dispute's, as they would be had the side made a certain mistake.
            policy: Another one than the dispute's.
        """
        used = self.accounts if accounts is None else accounts
        said = [logprobs(logits(policy or self.policy, a), a.labels, self.temperature) for a in used]
        return gap_of(used, said)

    def off(self) -> list[Account]:
        """Return the accounts that the plain computation does not agree with."""
        return [account for account in self.accounts if not self.apart([account]).within(self.allowed)]


def gap_of(accounts: Sequence[Account], said: Sequence[Tensor]) -> Gap:
    """Return how far (t,) log-probabilities of each account are from those that it tells."""
    gaps = [(logp - torch.tensor(a.logprobs)).abs() for a, logp in zip(accounts, said, strict=True)]
    joined = torch.cat(gaps) if gaps else torch.zeros(1)
    return Gap(float(joined.mean()), float(joined.max()))


def logits(policy: Policy, account: Account) -> Tensor:
    """Return the (t, v) float32 logits that predict an account's labels: one sequence, no cache, no padding."""
    ids = torch.tensor([account.read_ids], device=policy.device)
    extra: dict[str, Any] = {}
    if account.positions:  # a mask of ones: without one, positions that jump are taken for several sequences
        extra["position_ids"] = torch.tensor([account.positions], device=policy.device)
        extra["attention_mask"] = torch.ones_like(ids)
    first = min(account.places)
    with policy.autocast():
        output = policy.base(input_ids=ids, use_cache=False, logits_to_keep=ids.shape[1] - first + 1, **extra)
    table: Tensor = output.logits[0].float()
    return table[torch.tensor(account.places, device=table.device) - first]


def logprobs(table: Tensor, labels: Sequence[int], temperature: float) -> Tensor:
    """Return the (t,) log-probabilities of labels by (t, v) logits at a temperature, on the CPU."""
    logp = (table / temperature).log_softmax(-1)
    return logp.gather(-1, torch.tensor(labels, device=table.device)[:, None])[:, 0].cpu()
