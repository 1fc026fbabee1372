"""A small step along the update's gradient changes the loss as the gradient says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class Descent(Check):
    """Moves the weights a little along the trainer's own gradient, forward and back."""

    name = "signs/descent"
    needs = "passes"
    proves = Message(
        "The gradient of the weights is that of the loss: a small step along it lowers the loss by as much as it says.",
        "权重的梯度正是损失的梯度：沿它走一小步，损失下降得与它所说的一样多。",
    )
    how = Message(
        "Moves the weights a step along the gradient and a step back, runs the trainer's pass at both, and compares "
        "half the difference of the loss with the gradient's norm; shorter steps where the two disagree.",
        "沿梯度前后各走一步，在两处各做一次训练端的前向，把损失之差的一半与梯度范数相比；不一致时用更短的步。",
    )
    cannot = Message(
        "Only where trained weights are float32, and where some step is short enough to be a derivative: else it says "
        "that it cannot be judged.",
        "只在被训练的权重是 float32、且某个步长足够短时才能判断；否则会说明无法判断。",
    )
    right = Message(
        "a step along the update changes the loss by {measured:.2e}, and its gradient says {predicted:.2e}",
        "沿更新走一步，损失变化 {measured:.2e}，而梯度所说的为 {predicted:.2e}",
    )
    unjudged = Message("cannot be judged here: {why}", "这里无法判断：{why}")
    wrong = Message(
        "a step along the update changes the loss by {measured:.2e}, and its gradient says {predicted:.2e}: the "
        "backward pass is not that of the forward pass",
        "沿更新走一步，损失变化 {measured:.2e}，而梯度所说的为 {predicted:.2e}：反向传播与前向不符",
        fix=Fix(
            "try another model.attention or model.backend, and model.gradient_checkpointing the other way; look for "
            "detached or custom layers in the model",
            "换一种 model.attention 或 model.backend，切换 model.gradient_checkpointing；检查模型中被 detach 的层或自"
            "定义层",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome where there is a group of two rollouts."""
        if context.passes.trial is None:
            return
        descent = context.passes.descent
        evidence = {"step": descent.step}
        if not descent.judged:
            yield self.ok(self.unjudged, evidence=evidence, why=descent.why)
            return
        message = self.right if descent.agrees else self.wrong
        fields: dict[str, Any] = {"measured": descent.measured, "predicted": descent.predicted}
        yield self.outcome("pass" if descent.agrees else "fail", message, "", evidence, fields)
