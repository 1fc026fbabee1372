"""What the sampler recorded is what the model says of the sampled tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class SamplerAgrees(Check):
    """Compares the sampler's log-probabilities with a plain forward pass over the same tokens."""

    name = "agreement/sampler"
    needs = "passes"
    proves = Message(
        "The log-probabilities that the sampler records are the model's own, at the temperature of the recipe.",
        "采样端记录的对数概率正是模型自己的（按配方的温度）。",
    )
    how = Message(
        "Recomputes some of the shared rollouts without cache, packing or mask, token by token.",
        "对部分共享的采样，不用缓存、打包或掩码，逐个 token 重新计算。",
    )
    cannot = Message(
        "Differences below the rounding of the compute type are not seen.", "小于计算类型舍入误差的差异看不出来。"
    )
    right = Message(
        "sampler and model agree on {tokens} tokens (at most {most:.1g} nats apart)",
        "采样端与模型在 {tokens} 个 token 上一致（最多相差 {most:.1g} nat）",
    )
    _fix = Fix(
        "record log-probabilities at the temperature of sampling, of the tokens sampled, after the prompt as it was "
        "read; another model.attention or model.backend may read this model right",
        "按采样时的温度、对采样得到的 token、在实际读到的提示词之后记录对数概率；换一种 model.attention 或 "
        "model.backend 也许能正确计算这个模型",
    )
    differ = Message(
        "the sampler's log-probabilities differ from the model's by {mean:.3g} nats on average and {most:.3g} at most: "
        "a symptom, of another context, another cache or other weights on one side",
        "采样端的对数概率与模型的平均相差 {mean:.3g} nat，最多 {most:.3g} nat：这是症状，原因是一方的上下文、缓存或权重"
        "不同",
        fix=_fix,
    )
    padding = Message(
        "the sampler reads prompts that are shorter than the longest of their batch otherwise than the model "
        "({mean:.3g} nats apart on average), and the longest as it does: positions or attention count the padding",
        "比同批最长的提示词短的，采样端读得与模型不同（平均相差 {mean:.3g} nat），最长的则相同："
        "位置或注意力把填充也算进去了",
        fix=_fix,
    )
    temperature = Message(
        "the sampler's log-probabilities are those of temperature {other:.3g}, and the recipe's is {wanted:g} "
        "({mean:.3g} nats apart on average)",
        "采样端的对数概率是温度 {other:.3g} 的，而配方的温度为 {wanted:g}（平均相差 {mean:.3g} nat）",
        fix=_fix,
    )
    shifted = Message(
        "the sampler's log-probabilities stand one token early or late ({mean:.3g} nats apart on average)",
        "采样端的对数概率早了或晚了一个 token（平均相差 {mean:.3g} nat）",
        fix=_fix,
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome where something was sampled."""
        from levelhead.policy.rounding import tolerance
        from levelhead.preflight.agreement import apart, by_padding, logit_size, other_temperature, recorded, shifted

        heat = context.passes.temperature
        plain = context.passes.plain([turn for _, turns in context.sampled.turns for turn in turns])
        accounts, allowed = recorded(plain), tolerance(context.policy, logit_size(plain, heat))
        if not accounts:
            return
        gap = apart(accounts, heat)
        numbers: dict[str, Any] = {"mean": gap.mean, "most": gap.most}
        evidence = numbers | {"allowed_mean": allowed.mean, "allowed_most": allowed.most}
        if gap.within(allowed):
            yield self.ok(self.right, evidence=evidence, tokens=gap.tokens, most=gap.most)
        elif (other := other_temperature(accounts, heat, allowed)) is not None:
            yield self.fail(self.temperature, evidence=evidence, other=other, wanted=heat, mean=gap.mean)
        elif shifted(accounts, heat, allowed):
            yield self.fail(self.shifted, evidence=evidence, mean=gap.mean)
        elif by_padding(accounts, heat, allowed):
            yield self.fail(self.padding, evidence=evidence, mean=gap.mean)
        else:
            yield self.fail(self.differ, evidence=evidence, **numbers)
