"""The rollouts of a group can differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class Temperature(Check):
    """Reads the sampling controls of the reinforcement stage."""

    name = "sampling/temperature"
    needs = "data"
    proves = Message("The rollouts of a group can differ from each other.", "同组的采样可以彼此不同。")
    how = Message(
        "Reads grpo.sampling.temperature and grpo.sampling.top_k.",
        "读取 grpo.sampling.temperature 和 grpo.sampling.top_k。",
    )
    cannot = Message(
        "How often they really differ depends on the policy; the run's frac_reward_zero_std shows it.",
        "它们实际多常不同取决于策略；训练中的 frac_reward_zero_std 会显示。",
    )
    right = Message(
        "rollouts at temperature {train:g}, evaluation at {eval:g}", "采样温度 {train:g}，评估温度 {eval:g}"
    )
    greedy = Message(
        "grpo.sampling.temperature is 0: all rollouts of a group are equal, and no group has contrast",
        "grpo.sampling.temperature 为 0：组内的采样全部相同，没有一组有差异",
        fix=Fix("set grpo.sampling.temperature to 1.0", "把 grpo.sampling.temperature 设为 1.0"),
    )
    one_token = Message(
        "grpo.sampling.top_k is 1: all rollouts of a group are equal, and no group has contrast",
        "grpo.sampling.top_k 为 1：组内的采样全部相同，没有一组有差异",
        fix=Fix("set grpo.sampling.top_k to 0, which cuts nothing", "把 grpo.sampling.top_k 设为 0（不截断）"),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome where rollouts are sampled."""
        if context.grpo is None:
            return
        sampling = context.grpo.sampling
        if sampling.temperature == 0:
            yield self.fail(self.greedy)
        elif sampling.top_k == 1:
            yield self.fail(self.one_token)
        else:
            yield self.ok(self.right, train=sampling.temperature, eval=context.recipe.eval.sampling.temperature)
