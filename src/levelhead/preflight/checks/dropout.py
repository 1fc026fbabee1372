"""In training mode the policy is still a function of its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class Dropout(Check):
    """Counts dropout that is switched on."""

    name = "agreement/dropout"
    needs = "data"
    proves = Message(
        "In training mode the policy is still a function of its tokens: no dropout.",
        "训练模式下策略仍只取决于 token：没有 dropout。",
    )
    how = Message("Looks for dropout that is switched on.", "查找开着的 dropout。")
    cannot = Message(
        "Noise that no module announces shows in agreement/trainer, whose pass is in training mode.",
        "没有模块声明的噪声会在 agreement/trainer 中显现，它的前向处于训练模式。",
    )
    right = Message(
        "training mode computes the sampler's policy: no dropout", "训练模式与采样端计算的是同一个策略：没有 dropout"
    )
    on = Message(
        "dropout is on while training ({modules} modules, {layers} attention layers): sampler and trainer compute "
        "different policies, and ratios are noise",
        "训练时 dropout 开着（{modules} 个模块，{layers} 个注意力层）：采样端与训练端计算的不是同一个策略，比值只是噪"
        "声",
        fix=Fix("set every dropout to 0 for the grpo stage", "在 grpo 阶段把所有 dropout 设为 0"),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome where there is a reinforcement stage."""
        from torch import nn

        if context.grpo is None:
            return
        every = list(context.policy.model.modules())
        modules = sum(isinstance(m, nn.Dropout) and m.p > 0 for m in every)
        layers = sum(isinstance(a := getattr(m, "attention_dropout", 0), float) and a > 0 for m in every)
        if modules or layers:
            yield self.fail(self.on, modules=modules, layers=layers)
        else:
            yield self.ok(self.right)
