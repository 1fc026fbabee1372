"""The GRPO loss comes from every completion token and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext
    from levelhead.preflight.places import Places


SPARED = 0.2
"""Share of the tokens that losses which select tokens (clip_cov, kl_cov) may leave out."""


class CompletionOnly(Check):
    """Looks where the loss of one GRPO step came from."""

    name = "loss/completion-only"
    needs = "passes"
    proves = Message(
        "The GRPO loss comes from every completion token and from nothing else: not from prompts, not from padding.",
        "GRPO 的损失来自每个输出 token，而且只来自它们：不来自提示词，也不来自填充。",
    )
    how = Message(
        "Runs one step of the run's own trainer on the shared rollouts, cut to unequal lengths, some ended by a stop "
        "token, and records which hidden states and which labels a gradient reaches.",
        "用训练器自己在共享的采样上走一步（截成不同长度，有的以停止符结尾），记录梯度到达了哪些隐状态和标签。",
    )
    cannot = Message(
        "It sees whether a token counts, not how much. Losses that leave tokens out on purpose (clip_cov, kl_cov) may "
        "leave out a fifth.",
        "它看一个 token 是否计入，而不看权重多大。有意略去 token 的损失（clip_cov、kl_cov）可以略去五分之一。",
    )
    no_group = Message(
        "no group of two rollouts was sampled, so no loss was computed",
        "没有采样到至少两条的组，因此没有计算损失",
        fix=Fix("set grpo.group_size to 2 or more", "把 grpo.group_size 设为至少 2"),
    )
    right = Message(
        "the loss comes from the {tokens} completion tokens, and from nothing else", "损失只来自 {tokens} 个输出 token"
    )
    not_finite = Message(
        "the loss of one step is {loss} (entropy {entropy}, KL {kl})",
        "一步的损失为 {loss}（熵 {entropy}，KL {kl}）",
        fix=Fix(
            "look for 0 times infinity (0 log 0) in what each term computes; a coefficient of 0 does not take it away",
            "检查每一项的计算中有没有 0 乘无穷大（如 0 乘 0 的对数）；系数为 0 也消除不了它",
        ),
    )
    _fix = Fix(
        "predict completion token t from the state before it; take the mask from lengths, never from token values",
        "用前一个位置的状态预测第 t 个输出 token；掩码由长度得出，绝不由 token 的值得出",
    )
    outside = Message(
        "the loss comes from {outside} states that predict no completion token (at {at}): it falls on prompt or "
        "padding, and misses {missing} of {states} states",
        "损失来自 {outside} 个并不预测输出 token 的状态（在 {at} 处）：它落在提示词或填充上，并漏掉了应有的 {states} "
        "个状态中的 {missing} 个",
        fix=_fix,
    )
    missing = Message(
        "{missing} of {states} states that predict completion tokens feed no loss (at {at}): the tokens after them "
        "are not trained",
        "{states} 个预测输出 token 的状态中有 {missing} 个不计入损失（在 {at} 处）：它们之后的 token 没有训练",
        fix=_fix,
    )
    masked = Message(
        "{left_out} of {tokens} completion tokens feed no loss ({at}): a mask hides these",
        "{tokens} 个输出 token 中有 {left_out} 个不计入损失（{at}）：它们被掩码遮住了",
        fix=_fix,
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome where there is a reinforcement stage."""
        import math

        from levelhead import metrics as metric
        from levelhead.preflight.places import Pair, places_of

        grpo, trial = context.grpo, context.passes.trial
        if grpo is None:
            return
        if trial is None:
            if not context.passes.broken:
                yield self.warn(self.no_group)
            return
        values = trial.result.record.values
        if not math.isfinite(values[metric.LOSS]):
            shown = {"loss": metric.LOSS, "entropy": metric.ENTROPY, "kl": metric.KL}
            fields: dict[str, Any] = {name: str(values.get(key, 0.0)) for name, key in shown.items()}
            yield self.fail(self.not_finite, **fields)
            return
        pairs = [
            Pair(turn.context_ids, turn.completion_ids, i, advantage)
            for i, (group, advantages) in enumerate(zip(trial.groups, trial.result.advantages, strict=True))
            for rollout, advantage in zip(group.rollouts, advantages, strict=True)
            for turn in rollout.turns
        ]
        places = places_of(pairs, trial.listener, shared=context.policy.packs_trees)
        yield from self.judged(context, places, SPARED if grpo.loss.make().selects_tokens else 0.0)

    def judged(self, context: PreflightContext, places: Places, spared: float) -> Iterator[Outcome]:
        """Yield the outcome for some places, of which a share may be left out on purpose."""
        from levelhead.preflight.rendering import spelled

        missing, left_out = places.missing.total(), places.left_out.total()
        if places.outside:
            at = spelled(context.codec, list(places.outside)[:4])
            fields: dict[str, Any] = {"outside": places.outside.total(), "missing": missing, "states": places.states}
            yield self.fail(self.outside, at=at, **fields)
        elif missing and missing > spared * places.states + places.certain:
            at = spelled(context.codec, list(places.missing)[:4])
            yield self.fail(self.missing, at=at, missing=missing, states=places.states)
        elif left_out > spared * places.tokens:
            at = ", ".join(f"{place}: {count}" for place, count in places.left_out.most_common(4))
            yield self.fail(self.masked, at=at, left_out=left_out, tokens=places.tokens)
        else:
            yield self.ok(self.right, tokens=places.tokens)
