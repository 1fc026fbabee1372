"""Sampler, trainer and reference compute the same log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from levelhead.preflight.check import Check, Context, Fix, Message, Outcome


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

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome where something was sampled."""
        from levelhead.preflight.agreement import apart, by_padding, other_temperature, recorded, shifted

        passes, heat = context.passes, context.passes.temperature
        accounts, allowed = recorded(passes.plain), passes.tolerance
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


class TrainerAgrees(Check):
    """Compares the trainer's packed pass, in training mode, with the sampler's record and the plain pass."""

    name = "agreement/trainer"
    needs = "passes"
    proves = Message(
        "The trainer finds the log-probabilities that the sampler recorded, so that every ratio of the first update "
        "is 1.",
        "训练端得到的对数概率与采样端记录的相同，因此首次更新的每个比值都是 1。",
    )
    how = Message(
        "Reads the log-probabilities of one step of the run's own trainer on the shared rollouts, packed as it packs "
        "them, in training mode and in the run's own precision.",
        "读取训练器自己在共享采样上一步的对数概率：按它的方式打包、处于训练模式、用训练自己的精度。",
    )
    cannot = Message(
        "It compares the numbers of the first update. What the loss makes of them shows in signs/audit.",
        "它比较首次更新的数值；损失如何使用它们由 signs/audit 检查。",
    )
    right = Message(
        "sampler and trainer agree on {tokens} tokens (mean difference {mean:.1g} nats)",
        "采样端与训练端在 {tokens} 个 token 上一致（平均相差 {mean:.1g} nat）",
    )
    _fix = Fix(
        "the trainer must score the ids that the sampler read and sampled, at the sampling temperature; another "
        "model.attention or model.backend may compute this model right",
        "训练端必须对采样端读到和采样到的 id 计算概率，并使用采样温度；换一种 model.attention 或 model.backend 也许能"
        "正确计算这个模型",
    )
    differ = Message(
        "the trainer's log-probabilities of the sampled tokens differ from the sampler's by {mean:.3g} nats on "
        "average and {most:.3g} at most: every ratio starts away from 1, a symptom of other tokens, another context "
        "or another mask",
        "对采样得到的 token，训练端与采样端的对数概率平均相差 {mean:.3g} nat，最多 {most:.3g} nat：比值一开始就不是 1，"
        "这是症状，原因是 token、上下文或掩码不同",
        fix=_fix,
    )
    follows = Message(
        "the trainer's log-probabilities are the model's own, and differ from the sampler's by {mean:.3g} nats on "
        "average: a symptom, the sampler is at fault (agreement/sampler)",
        "训练端的对数概率正是模型自己的，与采样端平均相差 {mean:.3g} nat：这是症状，问题在采样端（agreement/sampler）",
        fix=_fix,
    )
    temperature = Message(
        "the trainer's log-probabilities are those of temperature {other:.3g}, and the recipe samples at {wanted:g}",
        "训练端的对数概率是温度 {other:.3g} 的，而配方按 {wanted:g} 采样",
        fix=_fix,
    )
    shifted = Message(
        "the trainer's log-probabilities stand one token early or late ({mean:.3g} nats apart on average)",
        "训练端的对数概率早了或晚了一个 token（平均相差 {mean:.3g} nat）",
        fix=_fix,
    )
    other_tokens = Message(
        "the trainer trains on sequences that were not sampled: {count} of {all}",
        "训练端训练的序列不是采样得到的：{all} 条中有 {count} 条",
        fix=_fix,
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome where there is a group of two rollouts."""
        import torch

        from levelhead.preflight.agreement import apart, gap_of, other_temperature, scored, shifted, trainer_logprobs

        trial = context.passes.trial
        if trial is None:
            return
        heat = context.passes.temperature
        tried = {(t.context_ids, t.completion_ids) for g in trial.groups for r in g.rollouts for t in r.turns}
        pairs = trainer_logprobs(trial)
        foreign = sum((s.sequence.context_ids, s.sequence.completion_ids) not in tried for s, _ in pairs)
        if foreign:
            yield self.fail(self.other_tokens, count=foreign, all=len(pairs))
            return
        by_sampler = []
        for sample, logp in pairs:
            # What the trial itself put at the end, or showed from a demonstration, nobody sampled.
            informative = [i for i, value in enumerate(sample.logprobs) if value != 0.0]
            by_sampler += [(logp[i : i + 1] - sample.logprobs[i]).abs() for i in informative]
        gap = gap_of(by_sampler)
        accounts, allowed = scored(trial, context.passes.plain), context.passes.tolerance
        plain = apart(accounts, heat)
        evidence = {
            "mean": gap.mean,
            "most": gap.most,
            "from_plain_mean": plain.mean,
            "from_plain_most": plain.most,
            "allowed_mean": allowed.mean,
            "allowed_most": allowed.most,
            "compute_dtype": str(context.policy.compute_dtype).removeprefix("torch."),
        }
        # In half precision the plain pass rounds its logits as well: there the two sides are compared with each other.
        exact = evidence["compute_dtype"] == "float32" and context.policy.base.dtype == torch.float32
        if gap.within(allowed) and (plain.within(allowed) or not exact):
            yield self.ok(self.right, evidence=evidence, tokens=gap.tokens, mean=gap.mean)
        elif accounts and (other := other_temperature(accounts, heat, allowed)) is not None:
            yield self.fail(self.temperature, evidence=evidence, other=other, wanted=heat)
        elif accounts and shifted(accounts, heat, allowed):
            yield self.fail(self.shifted, evidence=evidence, mean=gap.mean)
        elif plain.within(allowed) and exact:
            yield self.fail(self.follows, evidence=evidence, mean=gap.mean)
        else:
            worse = max((gap, plain), key=lambda each: each.most)
            yield self.fail(self.differ, evidence=evidence, mean=worse.mean, most=worse.most)


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

    def run(self, context: Context) -> Iterator[Outcome]:
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
