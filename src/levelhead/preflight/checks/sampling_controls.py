"""Sampling controls leave the policy's own distribution, or the loss corrects for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


MOVED = 0.05
"""Nats per token by which controls may move what is sampled away from the policy."""


class SamplingControls(Check):
    """Measures how far penalties and truncation move the shared rollouts away from the policy."""

    name = "sampling/controls"
    needs = "rollouts"
    proves = Message(
        "Rollouts are sampled from the policy that is trained, or the loss corrects for the difference.",
        "采样来自被训练的策略，或损失对差异做了校正。",
    )
    how = Message(
        "Compares, token by token, the probability under all sampling controls with that at the temperature alone.",
        "逐个 token 比较经过全部采样控制的概率与只有温度时的概率。",
    )
    cannot = Message(
        "It looks at eight short rollouts; the run's metrics measure every batch.",
        "它只看八条短采样；训练的指标会测量每一批。",
    )
    right = Message(
        "sampling controls move what is sampled by {nats:.2g} nats per token",
        "采样控制使采样每 token 偏离 {nats:.2g} nat",
    )
    corrected = Message(
        "sampling controls move what is sampled by {nats:.2f} nats per token, and grpo.loss.importance corrects for it",
        "采样控制使采样每 token 偏离 {nats:.2f} nat，grpo.loss.importance 对此做了校正",
    )
    another_policy = Message(
        "penalties, truncation or a minimum length move what is sampled {nats:.2f} nats per token away from the policy "
        "that is trained: the gradient is that of another policy",
        "惩罚、截断或最短长度使采样偏离被训练的策略，每 token {nats:.2f} nat：梯度属于另一个策略",
        fix=Fix(
            "drop these controls from grpo.sampling, or set grpo.loss.importance",
            "从 grpo.sampling 中去掉这些采样控制，或设置 grpo.loss.importance",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome where rollouts are sampled."""
        if context.grpo is None:
            return
        pairs = [pair for t in context.turns for pair in zip(t.logprobs, t.behaviour_logprobs, strict=True)]
        nats = sum(abs(a - b) for a, b in pairs) / max(len(pairs), 1)
        if nats <= MOVED:
            yield self.ok(self.right, nats=nats)
        elif context.grpo.loss.importance is not None:
            yield self.ok(self.corrected, nats=nats)
        else:
            yield self.warn(self.another_policy, nats=nats)
