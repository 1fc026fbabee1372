"""An update sees more than one prompt, and a batch is not used too often."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


MOST = 16
"""Updates of a batch of rollouts that clipping can correct."""


class BatchReuse(Check):
    """Counts groups per update and updates per batch."""

    name = "advice/batch"
    needs = "data"
    proves = Message(
        "An update sees more than one prompt, and a batch of rollouts is not used for more updates than clipping can "
        "correct.",
        "每次更新包含多道题，而且一批采样的更新次数没有超过裁剪所能校正的。",
    )
    how = Message("Divides the batch by group size and updates per batch.", "用组大小和每批更新次数去除批大小。")
    cannot = Message(
        "How far each update moves the policy depends on the learning rate; the guard measures it.",
        "每次更新使策略移动多远取决于学习率；训练中的 guard 会测量。",
    )
    right = Message(
        "{groups} groups of {k} per update, {updates} updates per rollout batch",
        "每次更新 {groups} 组，每组 {k} 条；每批采样更新 {updates} 次",
    )
    one_group = Message(
        "one group per update: every update follows a single prompt",
        "每次更新只有一组：更新的方向由一道题决定",
        fix=Fix("raise grpo.batch_size to several groups", "增大 grpo.batch_size，使每次更新包含多组"),
    )
    reused = Message(
        "{updates} updates per rollout batch: PPO-style clipping corrects small steps only; DAPO makes 16 updates per "
        "batch at 1e-6, TRL's default is 1",
        "每批采样更新 {updates} 次：PPO 式裁剪只能校正很小的变化；DAPO 以 1e-6 每批更新 16 次，TRL 默认 1 次",
        fix=Fix("lower grpo.updates_per_batch or grpo.epochs", "减小 grpo.updates_per_batch 或 grpo.epochs"),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per thing that is off, or one pass."""
        grpo = context.grpo
        if grpo is None:
            return
        groups = grpo.batch_size // grpo.group_size // grpo.updates_per_batch
        updates = grpo.updates_per_batch * grpo.epochs
        if groups < 2:
            yield self.warn(self.one_group)
        if updates > MOST:
            yield self.warn(self.reused, updates=updates)
        if groups >= 2 and updates <= MOST:
            yield self.ok(self.right, groups=groups, k=grpo.group_size, updates=updates)
