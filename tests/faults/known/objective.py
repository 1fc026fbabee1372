"""Faults of signs and scales in the objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import levelhead.objective.losses
import levelhead.training.batch
import levelhead.training.objective
from faults.known.registry import fault, replaced
from levelhead.policy.policy import Policy


def _terms(change: Callable[[str, Any, Any], tuple[Any, Any]]) -> Iterator[None]:
    """Change value or sense of the terms of the objective."""

    def make(real: Any) -> Any:
        def term(name: str, value: Any, sense: Any, *rest: Any, **options: Any) -> Any:
            return real(name, *change(name, value, sense), *rest, **options)

        return term

    with replaced(levelhead.training.objective, "Term", make):
        yield


@fault(
    "entropy-penalised",
    "the entropy bonus enters with the wrong sign and lowers entropy",
    "grpo.entropy.coef=0.01",
    kind="signs",
)
def _entropy_penalised() -> Iterator[None]:
    yield from _terms(lambda name, value, sense: (value, "minimize" if name == "entropy" else sense))


@fault(
    "entropy-negated-twice",
    "the entropy is handed over negated, and negated again",
    "grpo.entropy.coef=0.01",
    kind="signs",
)
def _entropy_negated_twice() -> Iterator[None]:
    yield from _terms(lambda name, value, sense: (-value if name == "entropy" else value, sense))


@fault(
    "kl-rewarded",
    "the KL enters with the wrong sign and drives the policy from its reference",
    "grpo.kl.coef=0.05",
    kind="signs",
)
def _kl_rewarded() -> Iterator[None]:
    yield from _terms(lambda name, value, sense: (value, "maximize" if name == "kl" else sense))


@fault("advantages-negated", "the policy learns what was rewarded least", kind="signs")
def _advantages_negated() -> Iterator[None]:
    def make(real: Any) -> Any:
        def sample(*args: Any, **options: Any) -> Any:
            made = real(*args, **options)
            return replace(made, advantage=-made.advantage)

        return sample

    with replaced(levelhead.training.batch, "Sample", make):
        yield


@fault("advantages-rolled", "advantages are handed to the next rollout of the group", kind="signs")
def _advantages_rolled() -> Iterator[None]:
    def make(real: Any) -> Any:
        def samples(*args: Any, **options: Any) -> Any:
            made = real(*args, **options)
            values = [sample.advantage for sample in made]
            pairs = zip(made, values[-1:] + values[:-1], strict=True)
            return [replace(sample, advantage=value) for sample, value in pairs]

        return samples

    with replaced(levelhead.training.batch, "_samples", make):
        yield


@fault("ratio-inverted", "the importance ratio is old over new, so its gradient points the other way", kind="signs")
def _ratio_inverted() -> Iterator[None]:
    def make(real: Any) -> Any:
        def policy_loss(kind: Any, logp: Any, old: Any, *rest: Any, **options: Any) -> Any:
            return real(kind, old, logp, *rest, **options)

        return policy_loss

    with replaced(levelhead.objective.losses, "policy_loss", make):
        yield


@fault(
    "entropy-summed-over-tokens",
    "the entropy is summed over tokens where the surrogate is their mean: a bonus hundreds of times too strong",
    "grpo.entropy.coef=0.01",
    kind="signs",
)
def _entropy_summed_over_tokens() -> Iterator[None]:
    yield from _terms(lambda name, value, sense: (value * 300 if name == "entropy" else value, sense))


@fault("entropy-of-impossible-tokens", "0 log 0 is computed as it stands: the entropy is no number", kind="signs")
def _entropy_of_impossible_tokens() -> Iterator[None]:
    def make(real: Any) -> Any:
        def score(self: Policy, *args: Any, **options: Any) -> Any:
            stats = real(self, *args, **options)
            return replace(stats, entropy=stats.entropy * math.nan)

        return score

    with replaced(Policy, "score", make):
        yield


@fault(
    "temperature-applied-twice",
    "the trainer divides logits by the temperature that they have been divided by",
    "grpo.sampling.temperature=0.6",
    kind="signs",
)
def _temperature_applied_twice() -> Iterator[None]:
    def make(real: Any) -> Any:
        return lambda self, batch, temperature=1.0: real(self, batch, temperature * temperature)

    with replaced(Policy, "score", make):
        yield
