"""How far two accounts of the same tokens lie apart, and which cause explains it where rounding does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from levelhead.policy.rounding import Tolerance
from levelhead.preflight.shared_passes import PlainTurn
from levelhead.preflight.trial import Trial
from levelhead.text.spans import common_prefix
from levelhead.training.batch import Sample

WARMTHS = tuple(0.05 * 1.05**i for i in range(124))
"""Temperatures that are tried, 0.05 to about 20."""
DISTINCT = 0.03
"""Relative difference of two temperatures that are not the same."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Distance of log-probabilities in nats: on average, and at most, over so many tokens."""

    mean: float
    most: float
    tokens: int

    def within(self, allowed: Tolerance) -> bool:
        """Whether rounding explains it; never where something is not a number."""
        return self.mean <= allowed.mean and self.most <= allowed.most


@dataclass(frozen=True, slots=True)
class Account:
    """What one side says of the first tokens of a sampled turn.

    Attributes:
        plain: The turn, computed the slow and obvious way.
        logp: (t,) what that side says.
    """

    plain: PlainTurn
    logp: Tensor

    def gap(self, temperature: float) -> Tensor:
        """Return the (t,) distances from the plain computation at a temperature."""
        count = min(len(self.logp), len(self.plain.logits_tv))
        return (self.plain.logp(temperature)[:count] - self.logp[:count]).abs()


def recorded(plain: Sequence[PlainTurn]) -> list[Account]:
    """Return what the sampler recorded of the turns that were computed the plain way."""
    return [Account(each, torch.tensor(each.turn.logprobs[: len(each.logits_tv)])) for each in plain]


def scored(trial: Trial, plain: Sequence[PlainTurn]) -> list[Account]:
    """Return what the trainer said of the same turns; those that it did not train on, by their tokens, are left out."""
    accounts = []
    for sample, logp in trainer_logprobs(trial):
        for each in plain:
            ids, count = each.turn.completion_ids, len(each.logits_tv)
            shared = common_prefix(ids[:count], sample.sequence.completion_ids)
            if sample.sequence.context_ids == each.turn.context_ids and shared and shared >= len(logp) - 1:
                accounts.append(Account(each, logp[:shared]))
                break
    return accounts


def trainer_logprobs(trial: Trial) -> list[tuple[Sample, Tensor]]:
    """Return the samples of a trial with what the trainer's model said of their tokens, (t,) each, on the CPU."""
    pairs: list[tuple[Sample, Tensor]] = []
    for slopes in trial.objective.micro_batches:
        parts = slopes.stats.logp.detach().float().cpu().split(list(slopes.lengths))
        pairs += zip(slopes.samples, parts, strict=True)
    return pairs


def gap_of(distances: Sequence[Tensor]) -> Gap:
    """Return the gap of (t,) distances."""
    joined = torch.cat(list(distances)) if distances else torch.zeros(1)
    return Gap(float(joined.mean()), float(joined.max()), len(joined))


def apart(accounts: Sequence[Account], temperature: float) -> Gap:
    """Return how far accounts are from the plain computation."""
    return gap_of([account.gap(temperature) for account in accounts])


def other_temperature(accounts: Sequence[Account], temperature: float, allowed: Tolerance) -> float | None:
    """Return the temperature at which the accounts agree with the plain computation; ``None`` where none does."""
    near = min(WARMTHS, key=lambda warmth: apart(accounts, warmth).mean)
    fine = [near * 1.05 ** (i / 50) for i in range(-50, 51)] + [1.0, temperature**2]
    best = min(fine, key=lambda warmth: apart(accounts, warmth).mean)
    agrees = apart(accounts, best).mean <= min(2 * allowed.mean, apart(accounts, temperature).mean / 2)
    return best if agrees and abs(best / temperature - 1) > DISTINCT else None


def shifted(accounts: Sequence[Account], temperature: float, allowed: Tolerance) -> bool:
    """Whether the accounts agree once their numbers are moved by one token, either way."""
    for move in (1, -1):
        gaps = []
        for account in accounts:
            logp = account.plain.logp(temperature)
            count = min(len(logp), len(account.logp))
            theirs, own = account.logp[:count], logp[:count]
            gaps.append((theirs[1:] - own[:-1]).abs() if move > 0 else (theirs[:-1] - own[1:]).abs())
        if any(map(len, gaps)) and gap_of([gap for gap in gaps if len(gap)]).within(allowed):
            return True
    return False


def by_padding(accounts: Sequence[Account], temperature: float, allowed: Tolerance) -> bool:
    """Whether accounts differ behind prompts that are shorter than the longest one, and behind that one do not."""
    sizes = [len(account.plain.turn.context_ids) for account in accounts]
    longest = [account for account, size in zip(accounts, sizes, strict=True) if size == max(sizes)]
    return len(longest) < len(accounts) and apart(longest, temperature).within(allowed)
