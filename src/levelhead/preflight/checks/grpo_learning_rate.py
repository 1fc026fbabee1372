"""The learning rate of GRPO lies where published runs have held."""

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
FULL, LORA = (1e-7, 1e-5), (1e-6, 2e-4)
"""Learning rates that are known to hold, with all weights and with adapters."""


class GrpoLearningRate(Check):
    """Compares the learning rate with published ones."""

    name = "advice/grpo-learning-rate"
    needs = "data"
    proves = Message(
        "The learning rate of GRPO lies where published runs of models of this size have held.",
        "GRPO 的学习率在这种规模的模型已发表的训练所用的范围内。",
    )
    how = Message(
        "Compares it with a published range, with and without LoRA.", "与已发表的范围相比，区分是否使用 LoRA。"
    )
    cannot = Message(
        "For models below 100M parameters there is no published range, and it always passes.",
        "1 亿参数以下的模型没有已发表的范围，总是通过。",
    )
    small = Message(
        "{rate:g} for {millions:.1f}M parameters; published rates are for larger models",
        "{millions:.1f}M 参数，学习率 {rate:g}；已发表的学习率针对更大的模型",
    )
    inside = Message(
        "{rate:g} lies in what is known to hold ({low:g} to {high:g})",
        "{rate:g} 在已知可行的范围内（{low:g} 到 {high:g}）",
    )
    _fix = Fix(
        "set grpo.optimizer.learning_rate to {start:.0e} and go from there",
        "把 grpo.optimizer.learning_rate 设为 {start:.0e}，再由此调整",
    )
    off_full = Message(
        "learning rate {rate:g} lies outside of what is known to hold ({low:g} to {high:g}): DeepSeekMath (Shao et al. "
        "2024) and DAPO (Yu et al. 2025) train all weights at 1e-6",
        "学习率 {rate:g} 在已知可行的范围（{low:g} 到 {high:g}）之外：DeepSeekMath (Shao et al. 2024) 和 DAPO (Yu et "
        "al. 2025) 以 1e-6 训练全部权重",
        fix=_fix,
    )
    off_lora = Message(
        "learning rate {rate:g} lies outside of what is known to hold ({low:g} to {high:g}): LoRA takes about ten "
        "times the rate of full training (LoRA Without Regret, Schulman et al. 2025)",
        "学习率 {rate:g} 在已知可行的范围（{low:g} 到 {high:g}）之外：LoRA 的学习率约为全参数训练的十倍"
        "（LoRA Without Regret, Schulman et al. 2025）",
        fix=_fix,
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome where there is a reinforcement stage."""
        if context.grpo is None:
            return
        size = sum(p.numel() for p in context.policy.model.parameters())
        rate, lora = context.grpo.optimizer.learning_rate, context.policy.lora
        low, high = LORA if lora else FULL
        if size < LARGE:
            yield self.ok(self.small, rate=rate, millions=size / 1e6)
        elif low <= rate <= high:
            yield self.ok(self.inside, rate=rate, low=low, high=high)
        else:
            off = self.off_lora if lora else self.off_full
            yield self.warn(off, rate=rate, low=low, high=high, start=(low * high) ** 0.5)
