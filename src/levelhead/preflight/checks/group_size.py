"""A group has enough rollouts for its mean and deviation to mean something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class GroupSize(Check):
    """Reads the group size and the estimator."""

    name = "rewards/group-size"
    needs = "data"
    proves = Message(
        "A group has enough rollouts for its mean and deviation to mean something.",
        "一组的采样足够多，均值和标准差才有意义。",
    )
    how = Message("Reads grpo.group_size and the estimator.", "读取 grpo.group_size 和优势估计方法。")
    cannot = Message(
        "Whether groups have contrast depends on the policy: the evaluation before the first step says how often.",
        "各组是否有差异取决于策略：第一步之前的评估会说明有多常见。",
    )
    right = Message("K = {k}", "K = {k}")
    _fix = Fix(
        "set grpo.group_size to 8 or more, or advantage.kind to rloo, which does not divide",
        "把 grpo.group_size 设为 8 或更大，或把 advantage.kind 设为不除以标准差的 rloo",
    )
    pair = Message(
        "K = 2: after division by the group's deviation the two advantages are always plus and minus the same number, "
        "however close the rewards; how much better one was is lost",
        "K = 2：除以组内标准差之后，无论奖励多接近，两个优势总是绝对值相同、一正一负；一个比另一个好多少的信息就丢失了",
        fix=_fix,
    )
    small = Message(
        "K = {k}: the group's mean and deviation are estimated from {k} rollouts, and many groups have no contrast "
        "(DeepSeekMath samples 64 per prompt, DAPO 16; TRL's default is 8)",
        "K = {k}：组内均值和标准差只由 {k} 条采样估计，而且很多组没有差异（DeepSeekMath 每题采样 64 条，DAPO 16 条；"
        "TRL 默认 8 条）",
        fix=_fix,
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome where rollouts are sampled."""
        grpo = context.grpo
        if grpo is None:
            return
        if grpo.group_size == 2 and grpo.advantage.make().divides_by_std:
            yield self.warn(self.pair)
        elif grpo.group_size < 4:
            yield self.warn(self.small, k=grpo.group_size)
        else:
            yield self.ok(self.right, k=grpo.group_size)
