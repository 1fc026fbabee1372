"""The coefficients of KL and entropy do not drown the reward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


LARGEST = {"kl": 1.0, "entropy": 0.1}
"""Coefficients from which on a term is likely to drown the reward."""


class Coefficients(Check):
    """Compares the coefficients that tasks really start from, each by the key that sets it, with published ones."""

    name = "advice/coefficients"
    needs = "data"
    proves = Message(
        "The coefficients of KL and entropy are not so large that they drown the reward.",
        "KL 和熵的系数没有大到淹没奖励。",
    )
    how = Message("Compares those that tasks start from with published ones.", "把各任务起始的系数与已发表的相比。")
    cannot = Message(
        "Controllers may move them later; the guard watches that.", "控制器以后可能改变它们；由 guard 监视。"
    )
    right = Message(
        "KL {low:g} to {top:g} by task, entropy {entropy:g}", "各任务的 KL 为 {low:g} 到 {top:g}，熵 {entropy:g}"
    )
    large = Message(
        "{key} {value:g}: such a term drowns the reward; DeepSeekMath uses a KL coefficient of 0.04 and DAPO none, "
        "entropy bonuses of 0.001 to 0.01 are usual (PPO, Schulman et al. 2017, takes 0.01)",
        "{key} {value:g}：这么大的系数会淹没奖励；DeepSeekMath 的 KL 系数为 0.04，DAPO 不用 KL，熵奖励通常取 0.001 到 "
        "0.01（PPO, Schulman et al. 2017 取 0.01）",
        fix=Fix("set {key} to {start:g} or less", "把 {key} 设为不超过 {start:g}"),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per coefficient that is too large, or one pass."""
        grpo, tasks = context.grpo, context.recipe.tasks
        if grpo is None:
            return
        coefficients = {"grpo.entropy.coef": (grpo.entropy.coef, LARGEST["entropy"])}
        if any(task.kl is None for task in tasks):
            coefficients["grpo.kl.coef"] = (grpo.kl.coef, LARGEST["kl"])
        coefficients |= {f"tasks.{i}.kl": (t.kl, LARGEST["kl"]) for i, t in enumerate(tasks) if t.kl is not None}
        large = {key: pair for key, pair in coefficients.items() if pair[0] > pair[1]}
        for key, (value, most) in large.items():
            yield self.warn(self.large, key=key, value=value, start=most / 10)
        if not large:
            starts = [task.kl if task.kl is not None else grpo.kl.coef for task in tasks]
            yield self.ok(self.right, low=min(starts), top=max(starts), entropy=grpo.entropy.coef)
