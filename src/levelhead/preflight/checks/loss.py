"""The loss comes from the tokens that are trained on, and from nothing else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from levelhead.errors import InputError, first_line
from levelhead.preflight.check import Check, Context, Fix, Message, Outcome

if TYPE_CHECKING:
    from levelhead.preflight.listening import Listener

CERTAIN = -1e-5
"""Log-probability from which on a token is so likely that its gradient vanishes."""


class Pair(NamedTuple):
    """A sequence of a batch, and what each of its tokens weighs in the loss."""

    context_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    prefix_group: int
    advantage: float = 1.0


@dataclass(frozen=True, slots=True)
class Places:
    """Counts of states of the last layer and of completion tokens, and a few examples.

    Attributes:
        tokens: Completion tokens of the batch.
        states: Distinct states that predict them.
        outside: States in the loss that predict none, with examples of the tokens at them.
        missing: States that predict one and are not in the loss, likewise.
        left_out: Completion tokens that no gradient reached, by place (``start``, ``middle``, ``end``, ``whole``).
        certain: Tokens so likely that their gradient vanishes.
    """

    tokens: int
    states: int
    outside: Counter[int]
    missing: Counter[int]
    left_out: Counter[str]
    certain: int


def places_of(pairs: Sequence[Pair], listener: Listener, *, shared: bool) -> Places:
    """Compare the places that feed a loss with the states that predict completion tokens.

    Rows may hold several sequences as a tree, so places are counted by the token that stands at them.

    Args:
        pairs: What was trained on.
        listener: Where the loss came from.
        shared: Whether sequences of a prefix group share their states.
    """
    states = _states(pairs, shared=shared)
    wanted = Counter(token for token, silent in states if not silent)
    either = Counter(token for token, silent in states if silent)
    in_loss: Counter[int] = Counter()
    for ids, marks in listener.rows():
        in_loss.update(token for token, mark in zip(ids, marks, strict=True) if mark)
    certain = sum(int((logp > CERTAIN).sum()) for _, logp in listener.scores)
    tokens = sum(len(pair.completion_ids) for pair in pairs)
    return Places(tokens, len(states), in_loss - wanted - either, wanted - in_loss, _left_out(pairs, listener), certain)


def _left_out(pairs: Sequence[Pair], listener: Listener) -> Counter[str]:
    """Count the completion tokens that no gradient reaches, by where they stand in their completions."""
    places: Counter[str] = Counter()
    pending = Counter(pair.completion_ids for pair in pairs)
    for ids, marks in listener.completions():
        pending -= Counter([tuple(ids)])
        for at, mark in enumerate(marks):
            if not mark:
                places["end" if at == len(ids) - 1 else "start" if at == 0 else "middle"] += 1
    places.update({"whole": sum(map(len, pending.elements()))})
    return +places


def _states(pairs: Sequence[Pair], *, shared: bool) -> list[tuple[int, bool]]:
    """Return the token at each distinct state that predicts a completion token; a prefix group may share states.

    With each, whether its gradient may vanish: where rollouts of opposite advantages go on with the same token.
    """
    states: dict[tuple[int, ...], dict[int, list[float]]] = {}
    for index, (context, completion, prefix_group, advantage) in enumerate(pairs):
        whole = context + completion
        for end in range(len(context), len(whole)):
            state = (prefix_group if shared else index, *whole[:end])
            states.setdefault(state, {}).setdefault(whole[end], []).append(advantage)
    return [
        (state[-1], all(abs(sum(each)) <= 1e-6 * sum(map(abs, each)) for each in following.values()))
        for state, following in states.items()
    ]


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

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome where there is a reinforcement stage."""
        from levelhead import metrics as metric

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
            yield self.fail(self.not_finite, **{name: str(values.get(key, 0.0)) for name, key in shown.items()})
            return
        pairs = [
            Pair(turn.context_ids, turn.completion_ids, i, advantage)
            for i, (group, advantages) in enumerate(zip(trial.groups, trial.result.advantages, strict=True))
            for rollout, advantage in zip(group.rollouts, advantages, strict=True)
            for turn in rollout.turns
        ]
        places = places_of(pairs, trial.listener, shared=context.policy.packs_trees)
        yield from self.judged(context, places, SPARED if grpo.loss.make().selects_tokens else 0.0)

    def judged(self, context: Context, places: Places, spared: float) -> Iterator[Outcome]:
        """Yield the outcome for some places, of which a share may be left out on purpose."""
        from levelhead.preflight.rendering import spelled

        missing, left_out = places.missing.total(), places.left_out.total()
        if places.outside:
            at = spelled(context.codec, list(places.outside)[:4])
            outside = places.outside.total()
            yield self.fail(self.outside, at=at, outside=outside, missing=missing, states=places.states)
        elif missing and missing > spared * places.states + places.certain:
            at = spelled(context.codec, list(places.missing)[:4])
            yield self.fail(self.missing, at=at, missing=missing, states=places.states)
        elif left_out > spared * places.tokens:
            at = ", ".join(f"{place}: {count}" for place, count in places.left_out.most_common(4))
            yield self.fail(self.masked, at=at, left_out=left_out, tokens=places.tokens)
        else:
            yield self.ok(self.right, tokens=places.tokens)


class DemonstrationLoss(CompletionOnly):
    """Looks where the loss of one supervised step came from."""

    name = "loss/demonstrations"
    needs = "passes"
    proves = Message(
        "The supervised loss comes from the tokens of the demonstrations and from nothing else.",
        "监督微调的损失只来自示范的 token。",
    )
    how = Message(
        "Runs one supervised step and records which hidden states and which labels a gradient reaches.",
        "做一步监督微调，记录梯度到达了哪些隐状态和标签。",
    )
    cannot = Message("It sees whether a token counts, not how much.", "它看一个 token 是否计入，而不看权重多大。")
    no_demonstrations = Message(
        "{error}",
        "{error}",
        fix=Fix("give every task an oracle, or remove the sft section", "给每个任务标准答案，或去掉 sft 一节"),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome where there is a supervised stage."""
        if context.recipe.sft is None:
            return
        try:
            shown, listener = context.passes.sft
        except InputError as error:
            yield self.fail(self.no_demonstrations, error=first_line(error))
            return
        pairs = [Pair(pair.context_ids, pair.completion_ids, pair.prefix_group) for pair in shown]
        yield from self.judged(context, places_of(pairs, listener, shared=context.policy.packs_trees), 0.0)
