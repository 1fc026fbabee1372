"""The weights can hold a step of the learning rate's size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


ENTRIES = 4096
"""Entries of a weight that are looked at."""


class VisibleUpdate(Check):
    """Compares the learning rate with the spacing of the numbers that hold the weights."""

    name = "precision/update/STAGE"
    needs = "rollouts"
    proves = Message(
        "A step of the peak learning rate changes most of the trained weights, in the type that holds them.",
        "最大学习率的一步能改变大多数被训练的权重（按它们的存储类型）。",
    )
    how = Message(
        "Compares the rate, which is the size of AdamW's steps, with half the spacing of numbers at some entries of "
        "each weight.",
        "把学习率（AdamW 的步长）与各权重若干元素处数值间距的一半相比。",
    )
    cannot = Message(
        "It looks at the type of the trained weights, not at that of the matrix products.",
        "它看被训练权重的类型，而不是矩阵乘法的类型。",
    )
    right = Message(
        "{share:.0%} of the weights can move at the peak learning rate", "最大学习率下 {share:.0%} 的权重能变化"
    )
    lost = Message(
        "at the peak learning rate only {share:.0%} of the weights can move: a step is lost in their rounding",
        "学习率最大时也只有 {share:.0%} 的权重能变化：更新量被舍入掉了",
        fix=Fix("train in float32, or with adapters", "用 float32 训练，或使用适配器"),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per stage; a failure where next to nothing can move."""
        import torch

        weights = [
            p.detach().flatten()[:: max(1, p.numel() // ENTRIES)] for p in context.policy.parameters if p.numel()
        ]
        for stage, section in (("sft", context.recipe.sft), ("grpo", context.recipe.grpo)):
            if section is None or not weights:
                continue
            rate = section.optimizer.learning_rate
            moved = [rate > torch.finfo(w.dtype).eps * w.float().abs() / 2 for w in weights]
            share = float(sum(int(m.sum()) for m in moved) / sum(m.numel() for m in moved))
            if share >= 0.5:
                yield self.ok(self.right, stage, share=share)
            else:
                yield self.outcome("fail" if share < 0.01 else "warn", self.lost, stage, {}, {"share": share})
