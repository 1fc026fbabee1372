"""What is true of a simulated run: is it sound, has its fault hurt it, does the paste show that."""

from __future__ import annotations

import numpy as np

from factorylib.faults import Fault
from factorylib.journal import Run
from factorylib.paste import Paste
from factorylib.plans import Plan

ENDS = 6
"""The first and the last such part of a run are its beginning and its end."""
LENGTHS = frozenset({f"completions/{n}" for n in ("mean_length", "max_length", "min_length", "clipped_ratio")})
APART = frozenset({
    "sampling/sampling_logp_difference/mean", "sampling/importance_sampling_ratio/mean", "mismatch/kl",
})  # fmt: skip
NEEDS: dict[str, frozenset[str]] = {
    "logprob-mismatch": APART,
    "stale-policy": APART | {"reward"},
    "nonfinite": frozenset({"loss", "grad_norm", "kl"}),
    "step-time-collapse": frozenset({"step_time"}),
    "eos-never": LENGTHS,
    "zero-gradient-despite-signal": frozenset({"grad_norm"}),
    "reward-dead-groups": frozenset({"frac_reward_zero_std", "reward_std", "reward/max", "grad_norm", "loss"}),
    "no-learning-signal-all-zero-reward": frozenset({"reward"}),
    "judge-failure": frozenset({"reward"}),
}
"""Columns of which a paste must hold one for a fault to be there to see, by its finding."""


def ends_of(run: Run, plan: Plan) -> tuple[float, float, float]:
    """True score at the beginning and at the end, and the standard error of their difference.

    A curriculum's prompts change, so that evaluations on all of them stand in there.
    """
    values = run.true
    if plan.family.curriculum:
        values = [row["eval/score"] for _, row in run.rows if "eval/score" in row]
    m = max(1, len(values) // ENDS)
    error = float(np.std(np.diff(values)) / np.sqrt(m)) if len(values) > 2 else 0.0
    return float(np.mean(values[:m])), float(np.mean(values[-m:])), error


def sound(run: Run, plan: Plan) -> bool:
    """Whether a run without a fault learnt, stood near its top, or was too short or slow to tell."""
    early, late, error = ends_of(run, plan)
    scale, top = plan.family.top_scale, run.top
    if late < 0.01 * scale and top > 0:
        return False
    if early >= top - 0.12 * scale:
        return late >= early - 0.03 * scale
    best = (
        max(np.convolve(run.true, np.ones(8) / 8, "valid"))
        if len(run.true) > 16 and not plan.family.curriculum
        else late
    )
    if best - late > 0.35 * max(best - early, 0.0) + 0.08 * scale:
        return False
    learnt = late - early > max(2 * error, 0.1 * (top - early))
    return learnt or ((plan.slow or plan.steps <= 60) and late - early > -error)


def hurt(run: Run, twin: Run, plan: Plan) -> bool:
    """Whether the end is worse than that of the same run without the fault by more than chance and by what matters."""
    _, late, error = ends_of(run, plan)
    early, twin_late, twin_error = ends_of(twin, plan)
    gap = twin_late - late
    matters = 0.25 * max(twin_late - early, 0.2 * plan.family.top_scale)
    return gap > max(matters, 2 * float(np.hypot(error, twin_error)))


def onset(plan: Plan) -> float:
    """Step at which a fault begins."""
    marks = [m for m in (plan.nan_from, plan.jolt_at, plan.jump_at) if m < 1.5]
    return plan.steps * (min(marks) if marks else plan.begin)


def shows(pasted: Paste, fault: Fault, plan: Plan) -> bool:
    """Whether the paste has rows from after the beginning of the fault, and a column that it can be seen in."""
    after = sum(i >= onset(plan) for i in pasted.rows)
    if after < max(1, min(4, len(pasted.rows) // 4)):
        return False
    if fault.root == "no-improvement" and pasted.rows[-1] - pasted.rows[0] < 40:
        return False
    if fault.root == "reward-hacking":
        # A reward that rises for the wrong reasons looks like any other, but for what judges it.
        return any(name.startswith(("eval/", "rewards/")) for name in pasted.columns)
    needed = NEEDS.get(fault.root, frozenset({"reward"}))
    return bool(needed & pasted.columns)
