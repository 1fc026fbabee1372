"""The learning rate of the supervised stage is not above what models bear."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


LARGE = 100_000_000
"""Parameters from which published learning rates for language models apply."""


class SftLearningRate(Check):
    """Compares the learning rate with a bound."""

    name = "advice/sft-learning-rate"
    needs = "data"
    proves = Message(
        "The learning rate of the supervised stage is not above what models of this size bear.",
        "监督微调的学习率没有超过这种规模的模型所能承受的。",
    )
    how = Message("Compares it with a bound, with and without LoRA.", "与上限相比，区分是否使用 LoRA。")
    cannot = Message("For models below 100M parameters it always passes.", "1 亿参数以下的模型总是通过。")
    right = Message("{rate:g} for {millions:.1f}M parameters", "{millions:.1f}M 参数，学习率 {rate:g}")
    high = Message(
        "learning rate {rate:g} is above {bound:g}; models of this size forget at it",
        "学习率 {rate:g} 高于 {bound:g}；这种规模的模型会因此遗忘",
        fix=Fix(
            "set sft.optimizer.learning_rate to {start:g} and go from there",
            "把 sft.optimizer.learning_rate 设为 {start:g}，再由此调整",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome where there is a supervised stage."""
        if context.recipe.sft is None:
            return
        size = sum(p.numel() for p in context.policy.model.parameters())
        rate, bound = context.recipe.sft.optimizer.learning_rate, 1e-3 if context.policy.lora else 1e-4
        if size < LARGE or rate <= bound:
            yield self.ok(self.right, rate=rate, millions=size / 1e6)
        else:
            yield self.warn(self.high, rate=rate, bound=bound, start=bound / 10)
