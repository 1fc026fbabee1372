"""All proofs, family by family, on one context."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator

from levelhead.preflight.context import untouched
from levelhead.training.prepare import Setup
from oracle.agreement import check_agreement
from oracle.batching import check_batching
from oracle.choice import check_choice
from oracle.context import PreflightContext
from oracle.draws import check_draws
from oracle.identities import check_identities
from oracle.loss import check_loss
from oracle.objective import check_objective
from oracle.pairs import check_pairs
from oracle.result import Check, Report
from oracle.roundtrip import check_roundtrip
from oracle.sampling import check_sampling
from oracle.signs import check_signs
from oracle.stops import check_stops
from oracle.tokens import check_tokens

FAMILIES: dict[str, Callable[[PreflightContext], Iterator[Check]]] = {
    "identities": check_identities,
    "tokens": check_tokens,
    "batching": check_batching,
    "stops": check_stops,
    "agreement": check_agreement,
    "loss": check_loss,
    "sampling": check_sampling,
    "draws": check_draws,
    "choice": check_choice,
    "signs": check_signs,
    "objective": check_objective,
    "roundtrip": check_roundtrip,
    "pairs": check_pairs,
}


def preflight(setup: Setup, *, families: Collection[str] = FAMILIES) -> Report:
    """Make the proofs of some families; weights, gradients and random generators are left as they were."""
    start = time.perf_counter()
    context = PreflightContext(setup)
    checks: list[Check] = []
    try:
        with untouched(setup.policy):
            for name in FAMILIES:
                if name in families:
                    checks += _proved(name, context)
    finally:
        context.close()
    return Report(checks, time.perf_counter() - start)


def _proved(name: str, context: PreflightContext) -> list[Check]:
    checks: list[Check] = []
    try:
        checks.extend(FAMILIES[name](context))
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        checks.append(Check(f"{name}/error", "fail", repr(error)[:300]))
    return checks
