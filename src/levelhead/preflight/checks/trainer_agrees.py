"""The trainer finds the log-probabilities that the sampler recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


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

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome where there is a group of two rollouts."""
        import torch

        from levelhead.policy.rounding import tolerance
        from levelhead.preflight.agreement import (
            apart,
            gap_of,
            logit_size,
            other_temperature,
            scored,
            shifted,
            trainer_logprobs,
        )

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
            told = [i for i, value in enumerate(sample.logprobs) if value != 0.0]
            by_sampler += [(logp[i : i + 1] - sample.logprobs[i]).abs() for i in told]
        gap = gap_of(by_sampler)
        by_plain = context.passes.plain([t for _, turns in context.sampled.turns for t in turns])
        accounts, allowed = scored(trial, by_plain), tolerance(context.policy, logit_size(by_plain, heat))
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
