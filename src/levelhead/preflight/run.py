"""All checks, one after another, on one context."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator

from levelhead.errors import InputError, RewardError
from levelhead.preflight.advice import check_advice
from levelhead.preflight.agreement import check_agreement
from levelhead.preflight.batching import check_batching
from levelhead.preflight.choice import check_choice
from levelhead.preflight.constant import check_constant
from levelhead.preflight.context import PreflightContext, untouched
from levelhead.preflight.draws import check_draws
from levelhead.preflight.identities import check_identities
from levelhead.preflight.isolation import check_isolation
from levelhead.preflight.judges import check_judges
from levelhead.preflight.loss import check_loss
from levelhead.preflight.memory import check_memory
from levelhead.preflight.objective import check_objective
from levelhead.preflight.pairs import check_pairs
from levelhead.preflight.result import Check, Report
from levelhead.preflight.rewards import check_rewards
from levelhead.preflight.roundtrip import check_roundtrip
from levelhead.preflight.sampling import check_sampling
from levelhead.preflight.signs import check_signs
from levelhead.preflight.steadiness import check_steadiness
from levelhead.preflight.stops import check_stops
from levelhead.preflight.throughput import check_throughput
from levelhead.preflight.tokens import check_tokens
from levelhead.training.prepare import Setup
from levelhead.training.ranks import Ranks

Family = Callable[[PreflightContext], Iterator[Check]]
FAMILIES: dict[str, Family] = {
    "judges": check_judges,
    "isolation": check_isolation,
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
    "rewards": check_rewards,
    "roundtrip": check_roundtrip,
    "steadiness": check_steadiness,
    "pairs": check_pairs,
    "constant": check_constant,
    "memory": check_memory,
    "throughput": check_throughput,
    "advice": check_advice,
}
"""What is checked, in this order."""


def preflight(
    setup: Setup,
    *,
    families: Collection[str] = FAMILIES,
    tell: Callable[[Check], None] | None = None,
    ranks: Ranks | None = None,
) -> Report:
    """Make every check on the run's own policy, tokenizer, tasks and recipe.

    Weights, gradients, modes and random generators are left as they were.

    Args:
        setup: As the run will use it.
        families: Which to make; all unless given.
        tell: Called with each check as it is made, in this process.
        ranks: The processes of the run: families are dealt out to those that hold the weights, and all get the whole
            report.
    """
    start, ranks = time.perf_counter(), ranks or Ranks()
    names = [name for name in FAMILIES if name in families]
    able = [rank for rank, holds in enumerate(ranks.gathered(setup.policy.device.type != "meta")) if holds]
    # Who has no weights waits for the others, which have the run's timeout for a family each.
    turns = [names] if len(able) == ranks.count else [[name] for name in names]
    by_family: dict[str, list[Check]] = {}
    with _Maker(setup, ranks.count, tell) as maker:
        for turn in turns:
            mine = turn[able.index(ranks.rank) :: len(able)] if ranks.rank in able else []
            for part in ranks.agreed(lambda mine=mine: maker.make(mine)):  # type: ignore[misc]
                by_family |= part
    return Report([check for name in names for check in by_family[name]], time.perf_counter() - start)


class _Maker(contextlib.ExitStack):
    """Makes checks on one context, which is there from the first one on.

    Args:
        setup: As the run will use it.
        processes: Of the run.
        tell: Called with each check as it is made.
    """

    def __init__(self, setup: Setup, processes: int, tell: Callable[[Check], None] | None) -> None:
        super().__init__()
        self._setup, self._processes, self._tell = setup, processes, tell
        self._context: PreflightContext | None = None

    def make(self, names: Collection[str]) -> dict[str, list[Check]]:
        """The checks of some families, by family."""
        checks: dict[str, list[Check]] = {}
        for name in names:
            if self._context is None:
                self._context = PreflightContext(self._setup, self._processes)
                self.callback(self._context.close)
                self.enter_context(untouched(self._setup.policy))
            checks[name] = []
            for check in _made(name, FAMILIES[name], self._context):
                checks[name].append(check)
                if self._tell is not None:
                    self._tell(check)
        return checks


def _made(name: str, family: Family, context: PreflightContext) -> Iterator[Check]:
    """A check that cannot be made is a failure with its cause, and does not keep the others from being made."""
    try:
        yield from family(context)
    except (InputError, RewardError) as error:
        yield Check(f"{name}/error", "fail", str(error).splitlines()[0], {}, "see the message")
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        first = (str(error).strip() or "no message").splitlines()[0]
        message = f"the {name} checks broke off, as training would: {type(error).__name__}: {first[:200]}"
        yield Check(f"{name}/error", "fail", message, {"error": repr(error)[:400]}, "see the message")
