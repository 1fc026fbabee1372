"""Faults of signs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import levelhead.training.batch
import levelhead.training.objective
from levelhead.lab.faults.registry import fault, replaced


def _terms(change: Callable[[str, Any, Any], tuple[Any, Any]]) -> Iterator[None]:
    """Change value or sense of the terms of the objective."""

    def make(real: Any) -> Any:
        def term(name: str, value: Any, sense: Any, *rest: Any, **options: Any) -> Any:
            return real(name, *change(name, value, sense), *rest, **options)

        return term

    with replaced(levelhead.training.objective, "Term", make):
        yield


@fault("entropy-penalised", "the entropy bonus enters with the wrong sign and lowers entropy", "grpo.entropy.coef=0.01")
def _entropy_penalised() -> Iterator[None]:
    yield from _terms(lambda name, value, sense: (value, "minimize" if name == "entropy" else sense))


@fault("entropy-negated-twice", "the entropy is handed over negated, and negated again", "grpo.entropy.coef=0.01")
def _entropy_negated_twice() -> Iterator[None]:
    yield from _terms(lambda name, value, sense: (-value if name == "entropy" else value, sense))


@fault("kl-rewarded", "the KL enters with the wrong sign and drives the policy from its reference", "grpo.kl.coef=0.05")
def _kl_rewarded() -> Iterator[None]:
    yield from _terms(lambda name, value, sense: (value, "maximize" if name == "kl" else sense))


@fault("advantages-negated", "the policy learns what was rewarded least")
def _advantages_negated() -> Iterator[None]:
    def make(real: Any) -> Any:
        def sample(*args: Any, **options: Any) -> Any:
            made = real(*args, **options)
            return replace(made, advantage=-made.advantage)

        return sample

    with replaced(levelhead.training.batch, "Sample", make):
        yield
