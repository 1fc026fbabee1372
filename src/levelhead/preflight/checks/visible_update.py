"""The weights can hold a step of the learning rate's size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


HIDDEN, FEW = 0.7, 0.1
"""Cosine below which a stage's updates count as hidden, and that of next to none."""


class VisibleUpdate(Check):
    """Compares the learning rate with the spacing of the numbers that hold the weights."""

    name = "precision/update/STAGE"
    needs = "rollouts"
    proves = Message(
        "What a stage's updates change is seen by the sampler, the trainer and the reference, whose products may round "
        "the weights.",
        "一个阶段的更新所改变的内容能被采样器、训练器和参考模型看到（它们的矩阵乘法可能会对权重舍入）。",
    )
    how = Message(
        "Changes some entries of each trained weight by the rate times the root of the number of updates, as AdamW "
        "does under noise, rounds them to the computing type, and compares the two changes.",
        "把各权重的若干元素改变“学习率 × 更新次数的平方根”（噪声下 AdamW 的步长），按计算类型舍入，再比较两种改变。",
    )
    cannot = Message(
        "It does not know the gradients: updates that all point one way are seen earlier.",
        "它不知道梯度：方向始终一致的更新会更早被看到。",
    )
    right = Message(
        "{kind} lets the updates through: cosine {cosine:.2f} after {updates} at a rate of {rate:.2g}",
        "{kind} 能反映更新：学习率 {rate:.2g} 下 {updates} 次更新后的余弦为 {cosine:.2f}",
    )
    lost = Message(
        "{kind} hides the updates: after {updates} at a rate of {rate:.2g} what it shows has cosine {cosine:.2f} with "
        "what was learnt, and norm {norm:.2f} of it",
        "{kind} 掩盖了更新：学习率 {rate:.2g} 下 {updates} 次更新后，可见的改变与所学的余弦为 {cosine:.2f}，"
        "范数为其 {norm:.2f}",
        fix=Fix(
            "set model.dtype to float32 on a CPU or float16 on a GPU, train an adapter (model.lora), or raise the rate",
            "CPU 上将 model.dtype 设为 float32，GPU 上设为 float16；或训练适配器（model.lora），或提高学习率",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per stage; a failure where the weights are stored so that next to nothing can move."""
        import torch

        from levelhead.policy.rounding import coarsest, foresee_visible

        policy, weights = context.policy, context.policy.parameters
        kind = coarsest(policy)
        for stage, section in (("sft", context.recipe.sft), ("grpo", context.recipe.grpo)):
            if section is None or not weights:
                continue
            rate, updates = section.optimizer.learning_rate, section.steps
            stored = all(weight.dtype != torch.float32 for weight in weights)  # then each update is rounded by itself
            seen = foresee_visible(weights, kind, rate, 1 if stored else updates)
            fields: dict[str, Any] = {
                "kind": str(kind).removeprefix("torch."), "rate": rate, "updates": 1 if stored else updates,
                "cosine": seen.cosine, "norm": seen.norm,
            }  # fmt: skip
            if seen.cosine >= HIDDEN:
                yield self.ok(self.right, stage, **fields)
            else:
                yield self.outcome("fail" if stored and seen.cosine < FEW else "warn", self.lost, stage, {}, fields)
