"""All checks, one after another, cheapest first, on one context."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from levelhead.errors import InputError, RewardError
from levelhead.preflight.check import NEEDS, Broken, Check, Need, Outcome, Report
from levelhead.preflight.checks import CHECKS
from levelhead.preflight.context import PreflightContext, untouched
from levelhead.training.prepare import Setup
from levelhead.training.ranks import Ranks

Tell = Callable[[Outcome], None]
"""Called with each outcome as it is made."""
Progress = Callable[[str, float], None]
"""Called before each check with its name and the share of the work that is done, 0 to 1."""
Stage = Callable[[Need], None]
"""Called before the first check of each kind."""

WORK: dict[Need, float] = {"data": 1.0, "rewards": 2.0, "rollouts": 1.0, "passes": 1.0}
"""Work of a check, in units; what the first check of a kind waits for is in :data:`SHARED`."""
SHARED: dict[Need, float] = {"data": 2.0, "rewards": 0.0, "rollouts": 30.0, "passes": 60.0}
"""Work of what the checks of a kind share: rendering, sampling, passes."""


def preflight(
    setup: Setup,
    *,
    families: Collection[str] = (),
    needs: Collection[Need] = NEEDS,
    tell: Tell | None = None,
    progress: Progress | None = None,
    stage: Stage | None = None,
    ranks: Ranks | None = None,
) -> Report:
    """Make every check on the run's own policy, tokenizer, tasks and recipe.

    Weights, gradients, modes and random generators are left as they were.

    Args:
        setup: As the run will use it.
        families: Beginnings of the names of the checks to make, as ``rewards`` or ``rewards/order``; all unless given.
        needs: Kinds of checks to make; all unless given.
        tell: Called with each outcome as it is made, in the process that makes the checks.
        progress: Called before each check, in the same process.
        stage: Called before the first check of each kind, in the same process.
        ranks: The processes of the run: the first that holds the weights makes the checks, and all get the report.
    """
    start, ranks = time.perf_counter(), ranks or Ranks()
    checks = [kind() for kind in CHECKS if kind.needs in needs]
    chosen = [check for check in checks if not families or _named(check.name, families)]
    able = [rank for rank, holds in enumerate(ranks.gathered(setup.policy.device.type != "meta")) if holds]
    mine = not able or ranks.rank == able[0]
    outcomes: list[Outcome] = []
    with _Maker(setup, ranks.count, chosen, _Listeners(tell, progress, stage)) as maker:
        for need in NEEDS:  # who makes none waits, for one kind of checks at a time
            parts = ranks.agreed(lambda need=need: maker.make(need) if mine else [])  # type: ignore[misc]
            outcomes += [outcome for part in parts for outcome in part]
    return Report(outcomes, time.perf_counter() - start)


def _named(name: str, families: Collection[str]) -> bool:
    return any(f"{name}/".startswith(f"{family}/") for family in families)


class _Listeners(NamedTuple):
    """Who is told while checks are made."""

    tell: Tell | None
    progress: Progress | None
    stage: Stage | None


class _Maker(contextlib.ExitStack):
    """Makes checks on one context, which is there from the first one on.

    Args:
        setup: As the run will use it.
        processes: Of the run.
        checks: To make.
        listeners: Called while they are made.
    """

    def __init__(self, setup: Setup, processes: int, checks: Sequence[Check], listeners: _Listeners) -> None:
        super().__init__()
        self._setup, self._processes, self._checks = setup, processes, checks
        self._listeners = listeners
        self._context: PreflightContext | None = None
        self._done = 0.0
        self._all = sum(WORK[c.needs] for c in checks) + sum(SHARED[need] for need in {c.needs for c in checks})

    def make(self, need: Need) -> list[Outcome]:
        """Return the outcomes of the checks of one kind."""
        outcomes: list[Outcome] = []
        due = [check for check in self._checks if check.needs == need]
        for index, check in enumerate(due):
            if self._context is None:
                self._context = PreflightContext(self._setup, self._processes)
                self.callback(self._context.close)
                self.enter_context(untouched(self._setup.policy))
            if index == 0 and self._listeners.stage is not None:
                self._listeners.stage(need)
            if self._listeners.progress is not None:
                self._listeners.progress(check.name, self._done / self._all)
            for outcome in _outcomes(check, self._context):
                outcomes.append(outcome)
                if self._listeners.tell is not None:
                    self._listeners.tell(outcome)
            self._done += WORK[need] + (SHARED[need] if index == 0 else 0.0)
        return outcomes


def _outcomes(check: Check, context: PreflightContext) -> list[Outcome]:
    """A check that cannot be made is a failure with its cause, and does not keep the others from being made."""
    outcomes: list[Outcome] = []
    try:
        outcomes.extend(check.run(context))
    except (InputError, RewardError, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        outcomes.append(Broken.of(check, error))
    return outcomes
