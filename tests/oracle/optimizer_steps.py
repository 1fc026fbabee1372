"""Identities of the optimizer: its rate, its count, its settings, and what it does to the weights.

A few entries of every trained weight are read before and after ``optimizer.step()``, by hooks of the optimizer itself,
and held against :mod:`oracle.adamw`, which goes along with moments of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from levelhead.recipe.training import Optimizer
from oracle import adamw
from oracle.violation import Violation, close, some

EXACT = 1e-9
"""Relative difference of two float64 computations of one number, at most."""
ULPS = 4.0
"""Roundings of a weight that one step makes, at most: changes below that many prove nothing."""
ROUNDED = {torch.float32: 5e-3, torch.float64: 5e-3}
"""Relative difference of an update in this type from one in float64; 0.15 in coarser types, whose moments round."""


@dataclass(frozen=True, slots=True)
class Step:
    """All that was seen of one update at the watched entries of n trained weights.

    Attributes:
        config: The stage's ``optimizer``.
        names: Of the weights.
        uncovered: Names of weights that the optimizer does not hold.
        foreign: Tensors of the optimizer that the policy does not train.
        calls: Times that the optimizer has stepped.
        update: Number of the update in its stage, from 0.
        done: Updates that the trainer counts before it.
        rate: Learning rate that the schedule gives it, times ``factor``.
        factor: By which a guard has lowered it.
        groups: Parameter groups of the optimizer as it stepped.
        reported: The ``learning_rate`` that was logged.
        reaches: Whether the update reaches each weight, shape (n,).
        told: Whether AdamW's update of it can be told, shape (n,).
        gradient: As the optimizer got it, shape (n, K).
        before: Weights, shape (n, K).
        after: Weights, shape (n, K).
        moments: AdamW's, before it.
        wanted: Change of the weights by AdamW, shape (n, K).
        unit: Distance of neighbouring numbers at each weight, shape (n, K).
        rounded: Relative error that the type of each weight explains, shape (n, 1).
        counts: Steps that the optimizer counts for each weight after it; NaN where it counts none, shape (n,).
    """

    config: Optimizer
    names: Sequence[str]
    uncovered: Sequence[str]
    foreign: int
    calls: int
    update: int
    done: int
    rate: float
    factor: float
    groups: Sequence[dict[str, Any]]
    reported: float
    reaches: Tensor
    told: Tensor
    gradient: Tensor
    before: Tensor
    after: Tensor
    moments: adamw.Moments
    wanted: Tensor
    unit: Tensor
    rounded: Tensor
    counts: Tensor

    @property
    def movable(self) -> Tensor:
        """Where the update must change a weight: AdamW's change is well above rounding, shape (n, K)."""
        return self.reaches[:, None] & self.told[:, None] & (self.wanted.abs() > 2 * ULPS * self.unit)

    @property
    def moved(self) -> Tensor:
        """Where weights are other than before, shape (n, K)."""
        return self.after != self.before


def coverage(step: Step) -> Violation | None:
    """The optimizer holds every weight that is trained, and none besides."""
    if not step.uncovered and not step.foreign:
        return None
    lost = f"{len(step.uncovered)} of {len(step.names)} trained weights are not in it ({some([*step.uncovered])})"
    alien = f"it holds {step.foreign} tensors that the policy does not train"
    what = " and ".join(part for part, is_so in ((lost, step.uncovered), (alien, step.foreign)) if is_so)
    text = f"the optimizer is not that of the policy: {what}"
    return Violation("optimizer-coverage", text, {"uncovered": len(step.uncovered), "foreign": step.foreign})


def learning_rate(step: Step) -> Violation | None:
    """The learning rate in force, and the one that is logged, are the schedule's at this update."""
    rates = [float(group["lr"]) for group in step.groups]
    wrong = next((rate for rate in [*rates, step.reported] if not close(rate, step.rate, EXACT)), None)
    if wrong is None:
        return None
    used = "in force" if wrong in rates else "logged"
    text = (
        f"the learning rate {used} at update {step.update + 1} is {wrong:.6g}, and the schedule of the recipe gives "
        f"{step.rate:.6g}: {_as_if(step, wrong)}"
    )
    evidence = {"seen": wrong, "scheduled": step.rate, "update": step.update + 1, "guard_factor": step.factor}
    return Violation("learning-rate", text, evidence)


def _as_if(step: Step, rate: float) -> str:
    if step.done != step.update:
        return f"the trainer counts {step.done} updates before it"
    return f"it is {rate / step.rate:.4g} times as large" if step.rate else "it should be 0"


def count(step: Step) -> Violation | None:
    """Updates are counted once each: by the trainer, whose schedule goes by them, and by Adam for every weight."""
    evidence: dict[str, Any] = {"update": step.update + 1, "counted": step.done, "steps": step.calls}
    if step.done != step.update:
        text = f"{step.update} updates came before this one, and the trainer counts {step.done}: the schedule is off"
        return Violation("update-count", text, evidence)
    if step.calls != 1:
        return Violation("update-count", f"the optimizer stepped {step.calls} times in one update", evidence)
    comparable = torch.isfinite(step.counts) & step.reaches
    wanted = step.moments.steps + 1
    wrong = comparable & (step.counts != wanted)
    if not bool(wrong.any()):
        return None
    index = int(wrong.nonzero()[0])
    seen, right = int(step.counts[index]), int(wanted[index])
    text = (
        f"Adam has counted {seen} steps of {step.names[index]}, and {right} updates have reached it"
        f"{' (and so for others)' if int(wrong.sum()) > 1 else ''}: its bias corrections are off"
    )
    return Violation("update-count", text, {**evidence, "adam": seen, "updates": right})


def settings(step: Step) -> Violation | None:
    """Betas, epsilon and weight decay in force are the recipe's."""
    for group in step.groups:
        if "betas" not in group:  # Muon's
            continue
        pairs = [("betas", tuple(group["betas"]), tuple(step.config.betas))]
        pairs += [(name, group[name], getattr(step.config, name)) for name in ("eps", "weight_decay")]
        for name, seen, wanted in pairs:
            if seen != wanted:
                text = f"the optimizer runs with {name} {seen}, and the recipe says {wanted}"
                return Violation("optimizer-settings", text, {"name": name, "seen": seen, "recipe": wanted})
    return None


def moves(step: Step) -> Violation | None:
    """Every trained weight that an update must move has moved."""
    movable = step.movable
    still_n = (movable & ~step.moved).any(dim=1)
    if not bool(still_n.any()):
        return None
    names = [name for name, still in zip(step.names, still_n.tolist(), strict=True) if still]
    share = float((movable & step.moved).sum() / movable.sum())
    text = (
        f"{share:.0%} of the weights that the update should have moved have moved: {some(names)} stand still, with a "
        "gradient"
    )
    return Violation("weights-not-moved", text, {"share": share, "still": len(names)})


def arithmetic(step: Step) -> Violation | None:
    """Weights change by what AdamW makes of the gradient with the recipe's settings, and by nothing else."""
    change = step.after - step.before
    slack = ULPS * step.unit + step.rounded * step.wanted.abs() + 1e-6 * step.rate
    judged = step.told[:, None].expand_as(change) & torch.isfinite(step.wanted)
    judged = judged & ~(step.movable & ~step.moved)  # :func:`moves` tells of them
    wrong = judged & ~((change - step.wanted).abs() <= slack)
    if not bool(wrong.any()):
        return None
    names = [name for name, bad in zip(step.names, wrong.any(dim=1).tolist(), strict=True) if bad]
    row, column = (int(index) for index in wrong.nonzero()[0])
    seen, right = float(change[row, column]), float(step.wanted[row, column])
    text = (
        f"an update is not AdamW's: a weight of {names[0]} changed by {seen:.3g}, and its gradient makes {right:.3g}"
        f" ({len(names)} of {len(step.names)} weights are off): {_cause(step, change, judged)}"
    )
    return Violation("optimizer-arithmetic", text, {"seen": seen, "wanted": right, "off": len(names)})


def _cause(step: Step, change: Tensor, judged: Tensor) -> str:
    """Which well-known mistake explains the change, if one does."""
    slack = ULPS * step.unit + 1e-6 * step.rate
    reach = judged & step.reaches[:, None]
    for mistake in adamw.MISTAKES:
        made, _ = adamw.step(step.before, step.gradient, step.moments, step.rate, step.config, mistake)
        if bool(((change - made).abs() <= slack + step.rounded * made.abs())[reach].all()):
            return mistake.what
    wanted, seen = step.wanted[reach], change[reach]
    if not bool(wanted.any()):
        return "weights changed that no gradient reaches"
    factor = float((wanted * seen).sum() / wanted.square().sum())
    if bool(((seen - factor * wanted).abs() <= slack[reach] + 0.01 * seen.abs()).all()):
        return f"it is {factor:.4g} times as long"
    return "it follows from no gradient, moments and settings that are known here"


STEP: tuple[Callable[[Step], Violation | None], ...] = (coverage, learning_rate, count, settings, moves, arithmetic)
"""Identities of one optimizer step."""
