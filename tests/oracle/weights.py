"""The gradient of the weights that the textbook's slopes lead to, and the one that reached the optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from levelhead.policy.policy import Policy
from oracle import plain
from oracle.differential import Comparison
from oracle.rehearsal import Rehearsal, watched_parameters
from oracle.synthetic import Row
from oracle.textbook.merge import cosines, merge_weights
from oracle.textbook.records import Floats, Settings

MOST_LOGITS = 1 << 26
"""Logits computed at once; where there are more, completions are computed one by one."""
CLOSE = 2e-4
"""Distance of two gradients in float32, relative to their length, up to which they are one: packed and plain passes add
up in another order."""
COARSE = 0.15
"""The same where weights are in half precision."""


class PlainPass:
    """The policy's forward pass over some completions, the plain way, kept for backward passes."""

    def __init__(self) -> None:
        self.rows: Sequence[Row] = ()
        self._logits: list[Tensor] = []

    def before(self, policy: Policy, rows: Sequence[Row], temperature: float) -> list[Floats]:
        """Return (t,) log-probabilities of each completion at a temperature."""
        if not self._logits:
            self.rows = rows
            pairs = [row.key for row in rows]
            size = len(pairs) * max(len(a) + len(b) for a, b in pairs) * policy.codec.vocab_size
            with torch.enable_grad():
                if size <= MOST_LOGITS:
                    self._logits = plain.padded_logits(policy, pairs)
                else:
                    self._logits = [plain.logits(policy, *pair) for pair in pairs]
        with torch.no_grad():
            logps = [self._logp(i, temperature)[0] for i in range(len(rows))]
        return [np.asarray(logp.double().cpu().numpy()) for logp in logps]

    def _logp(self, index: int, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of a completion, (t,) each."""
        table = (self._logits[index] / temperature).log_softmax(-1)
        targets = torch.tensor(self.rows[index].completion_ids, device=table.device)
        return table.gather(-1, targets[:, None])[:, 0], -(table.exp() * table).sum(-1)

    def along(
        self, slopes: Mapping[int, tuple[Floats, Floats]], temperature: float, parameters: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the gradient of the weights that slopes along log-probabilities and entropies lead to.

        Args:
            slopes: (t,) of both by completion.
            temperature: At which completions are scored.
            parameters: To differentiate with respect to.
        """
        total = self._logits[0].new_zeros(())
        for index, (logp_slope, entropy_slope) in slopes.items():
            logp, entropy = self._logp(index, temperature)
            total = total + (logp * _like(logp_slope, logp)).sum() + (entropy * _like(entropy_slope, logp)).sum()
        return list(
            torch.autograd.grad(total, list(parameters), retain_graph=True, allow_unused=True, materialize_grads=True)
        )


def _like(values: Floats, like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)


@dataclass(frozen=True, slots=True)
class Gap:
    """A gradient of the weights against the textbook's.

    Attributes:
        distance: Of the two, relative to the length of the textbook's.
        says: What the difference is; empty where there is none.
    """

    distance: float
    says: str


@dataclass(slots=True)
class Monitor:
    """Which aggregator is in force, as the recipe's monitor has it.

    Attributes:
        settings: The recipe.
        kind: In force.
        streak: Looks in a row that saw a conflict.
        updates: Updates seen.
    """

    settings: Settings
    kind: str
    streak: int = 0
    updates: int = 0

    @property
    def apart(self) -> bool:
        """Whether the tasks' gradients of the next update are kept apart."""
        every = self.settings.grpo.merge.monitor_every
        return self.kind != "sum" or (every > 0 and self.updates % every == 0)

    def seen(self, task_cosines: Sequence[float]) -> None:
        """Note the cosines of an update whose tasks were kept apart."""
        merge = self.settings.grpo.merge
        every = merge.monitor_every
        if task_cosines and (self.apart or every):
            self.streak = self.streak + 1 if min(task_cosines) < merge.conflict_below else 0
        self.updates += 1
        if self.kind == "sum" and 0 < merge.switch_after <= self.streak:
            self.kind = merge.switch_to


def compare_weights(rehearsal: Rehearsal, compared: Sequence[Comparison], passes: PlainPass) -> list[Gap]:
    """Return how far the gradient of each watched update is from the textbook's."""
    monitor = Monitor(rehearsal.settings, rehearsal.settings.grpo.merge.kind)
    gaps: list[Gap] = []
    before: list[Tensor] | None = None
    for c in compared:
        if c.update.gradient is None:
            continue
        parts = _parts(c)
        everything, watched = list(rehearsal.policy.parameters), watched_parameters(rehearsal.policy)
        if not monitor.apart:
            want = [passes.along(_added(parts.values()), c.update.temperature, watched)]
            monitor.seen(())
        else:
            want = _merged(rehearsal, c, passes, monitor, everything, watched)
        gradient = [torch.zeros_like(p) if g is None else g for p, g in zip(watched, c.update.gradient, strict=True)]
        gaps.append(_gap(rehearsal, c, passes, want, gradient, before, parts))
        before = gradient
        if gaps[-1].says:
            break
    return gaps


_Slopes = dict[int, tuple[Floats, Floats]]


def _parts(c: Comparison) -> dict[str, _Slopes]:
    """What the loss is the sum of, by name: the reward of each task, the KL and the entropy of each."""
    parts: dict[str, _Slopes] = {}
    for t in c.told:
        none = np.zeros(t.answer.length)
        parts.setdefault(f"the reward of {t.answer.task}", {})[t.row] = (t.policy, none)
        parts.setdefault(f"the KL of {t.answer.task}", {})[t.row] = (t.want.kl, none)
        parts.setdefault(f"the entropy of {t.answer.task}", {})[t.row] = (none, t.want.entropy)
    return {
        name: part
        for name, part in parts.items()
        if any(bool((a != 0).any() or (b != 0).any()) for a, b in part.values())
    }


def _added(parts: Iterable[_Slopes]) -> _Slopes:
    total: _Slopes = {}
    for part in parts:
        for row, (a, b) in part.items():
            x, y = total.get(row, (0.0, 0.0))
            total[row] = (x + a, y + b)
    return total


def _merged(
    rehearsal: Rehearsal,
    c: Comparison,
    passes: PlainPass,
    monitor: Monitor,
    everything: Sequence[Tensor],
    watched: Sequence[Tensor],
) -> list[list[Tensor]]:
    """The gradients that an aggregator may make of the tasks': several where it draws an order."""
    merge = rehearsal.settings.grpo.merge
    parts = _parts(c)
    tasks = list(dict.fromkeys(t.answer.task for t in c.told))
    inside = {
        task: _added(
            [p for n, p in parts.items() if n.endswith(f" of {task}") and (merge.memory == "low" or "reward" in n)]
        )
        for task in tasks
    }
    inside = {task: part for task, part in inside.items() if part}
    rest = [] if merge.memory == "low" else [p for n, p in parts.items() if "reward" not in n]
    whole = {task: passes.along(part, c.update.temperature, everything) for task, part in inside.items()}
    products = np.array([[_inner(a, b) for b in whole.values()] for a in whole.values()])
    kind = monitor.kind
    monitor.seen(cosines(products))
    where = {id(p): i for i, p in enumerate(everything)}
    watched_gradients = [[g[where[id(p)]] for p in watched] for g in whole.values()]
    straight = (
        passes.along(_added(rest), c.update.temperature, watched) if rest else [torch.zeros_like(p) for p in watched]
    )
    merged = []
    for weights in merge_weights(merge, kind, products):
        total = [g.clone() for g in straight]
        for weight, gradient in zip(weights, watched_gradients, strict=True):
            total = [a + float(weight) * b for a, b in zip(total, gradient, strict=True)]
        merged.append(total)
    return merged


def _inner(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return float(sum((x.double() * y.double()).sum() for x, y in zip(a, b, strict=True)))


def _distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    gap = [x.double() - y.double() for x, y in zip(a, b, strict=True)]
    return math.sqrt(_inner(gap, gap) / max(_inner(b, b), 1e-300))


def _gap(
    rehearsal: Rehearsal,
    c: Comparison,
    passes: PlainPass,
    ways: Sequence[list[Tensor]],
    gradient: list[Tensor],
    before: list[Tensor] | None,
    parts: Mapping[str, _Slopes],
) -> Gap:
    allowed = CLOSE if rehearsal.exact else COARSE
    want = min(ways, key=lambda way: _distance(gradient, way))
    distance = _distance(gradient, want)
    if distance <= allowed:
        limit = rehearsal.settings.grpo.optimizer.max_grad_norm
        shorter = min(1.0, limit / (c.update.norm + 1e-6))
        if abs(c.update.clipped / shorter - 1) > 1e-3:
            return Gap(
                distance,
                f"clipping scales the gradient by {c.update.clipped:.4g}, and its norm asks for {shorter:.4g}",
            )
        return Gap(distance, "")
    factor = _inner(gradient, want) / max(_inner(want, want), 1e-300)
    if factor and _distance([g / factor for g in gradient], want) <= allowed:
        return Gap(
            distance, f"the whole gradient is {factor:.4g} times what it should be{_recognised(factor, rehearsal, c)}"
        )
    pieces = {
        name: passes.along(part, c.update.temperature, watched_parameters(rehearsal.policy))
        for name, part in parts.items()
    }
    if before is not None:
        pieces["the update before, whose gradient was not cleared,"] = before
    shares = _shares(gradient, pieces)
    fitted = [sum(share * p[i] for share, p in zip(shares, pieces.values(), strict=True)) for i in range(len(gradient))]
    if _distance(gradient, [torch.as_tensor(g) for g in fitted]) <= allowed:
        wanted = dict.fromkeys(pieces, 0.0) | dict(zip(pieces, _shares(want, pieces), strict=True))
        off = [
            f"{name} enters {share:.4g} times and should {_times(wanted[name])}"
            for name, share in zip(pieces, shares, strict=True)
            if abs(share - wanted[name]) > 10 * allowed
        ]
        return Gap(distance, "; ".join(off) or f"the gradient of the weights is {distance:.2g} of its length off")
    return Gap(
        distance,
        f"the gradient of the weights is {distance:.2g} of its length off the one that the tokens' slopes lead to",
    )


def _shares(gradient: Sequence[Tensor], pieces: Mapping[str, Sequence[Tensor]]) -> list[float]:
    """Least squares of a gradient on some pieces."""
    products = np.array([[_inner(a, b) for b in pieces.values()] for a in pieces.values()])
    target = np.array([_inner(gradient, a) for a in pieces.values()])
    return [float(x) for x in np.linalg.lstsq(products, target, rcond=1e-10)[0]]


def _times(factor: float) -> str:
    return f"{factor:.4g} times" if abs(factor) > 1e-6 else "not at all"


def _recognised(factor: float, rehearsal: Rehearsal, c: Comparison) -> str:
    """What a factor may be, in words."""
    micros = len({p.micro for passes in c.update.passes.values() for p in passes})
    temperature, tasks = c.update.temperature, len(rehearsal.settings.tasks)
    names = {
        f"1/{temperature:g}: the temperature": 1 / temperature,
        f"{temperature:g}: the temperature": temperature,
        f"1/{micros}: divided once more by the number of micro-batches": 1 / micros,
        f"{micros}: the number of micro-batches": float(micros),
        f"1/{tasks}: divided by the number of tasks": 1 / tasks,
        f"{tasks}: the number of tasks": float(tasks),
        "-1: the sign": -1.0,
    }
    return next((f" ({name})" for name, value in names.items() if value != 1.0 and abs(factor / value - 1) < 1e-3), "")
