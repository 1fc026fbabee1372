"""What sampling allows: answers as long as perfect ones, rollouts that differ, the policy's own distribution."""

from __future__ import annotations

from collections.abc import Iterator

from levelhead.preflight.check import Check, Context, Fix, Message, Outcome, Status
from levelhead.preflight.known import answer_lengths


class MinimumLength(Check):
    """Compares min_new_tokens with the lengths of perfect answers."""

    name = "sampling/min-length"
    needs = "data"
    proves = Message(
        "The policy is allowed to end an answer where a perfect answer ends.", "策略可以在标准答案结束的地方结束回答。"
    )
    how = Message(
        "Compares min_new_tokens with the lengths of demonstrations or of the oracle's answers.",
        "把 min_new_tokens 与示范或标准答案的长度相比。",
    )
    cannot = Message(
        "Without an oracle there is nothing to compare with. It looks at a few prompts of each task.",
        "没有标准答案就无从比较；每个任务只看几道题。",
    )
    none = Message("no minimum length", "没有最短长度")
    unknown = Message("minimum {least}; no answer to compare with", "最短长度 {least}；没有答案可比较")
    right = Message(
        "perfect answers have {shortest} tokens or more, the minimum is {least}",
        "标准答案至少有 {shortest} 个 token，最短长度为 {least}",
    )
    too_long = Message(
        "{short:.0%} of the perfect answers are shorter than min_new_tokens {least} (the shortest has {shortest} "
        "tokens): the policy is not allowed to end them",
        "{short:.0%} 的标准答案短于 min_new_tokens {least}（最短的有 {shortest} 个 token）：策略无法在那里结束",
        fix=Fix("set min_new_tokens to at most {shortest}", "把 min_new_tokens 设为不超过 {shortest}"),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome; a failure where most answers are too short."""
        sampling = context.grpo.sampling if context.grpo is not None else context.recipe.eval.sampling
        least = sampling.min_new_tokens
        if least == 0:
            yield self.ok(self.none)
            return
        lengths = answer_lengths(context)
        if not lengths:
            yield self.ok(self.unknown, least=least)
            return
        short, shortest = sum(length < least for length in lengths) / len(lengths), min(lengths)
        if not short:
            yield self.ok(self.right, shortest=shortest, least=least)
            return
        status: Status = "fail" if short > 0.5 else "warn"
        yield self.outcome(status, self.too_long, short=short, least=least, shortest=shortest)


class MaximumLength(Check):
    """Compares max_new_tokens with the lengths of perfect answers."""

    name = "sampling/max-length"
    needs = "data"
    proves = Message(
        "Perfect answers fit into max_new_tokens, in training and in evaluation.",
        "训练和评测时，标准答案都在 max_new_tokens 之内。",
    )
    how = Message(
        "Compares the limits with the lengths of demonstrations or of the oracle's answers.",
        "把上限与示范或标准答案的长度相比。",
    )
    cannot = Message(
        "A policy that thinks before it answers needs more room than the oracle's answer; the run's "
        "completions/clipped_ratio shows how much.",
        "先思考再回答的策略需要比标准答案更多的空间；训练中的 completions/clipped_ratio 会显示需要多少。",
    )
    right = Message(
        "perfect answers have up to {longest} of {most} tokens", "标准答案最长 {longest} 个 token，上限 {most}"
    )
    unknown = Message("up to {most} tokens; no answer to compare with", "上限 {most} 个 token；没有答案可比较")
    cut = Message(
        "{share:.0%} of the perfect answers, up to {longest} tokens, exceed {where}.max_new_tokens {most}",
        "{share:.0%} 的标准答案（最长 {longest} 个 token）超过 {where}.max_new_tokens {most}",
        fix=Fix("set {where}.max_new_tokens to at least {longest}", "把 {where}.max_new_tokens 设为至少 {longest}"),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome; a failure where most answers are cut."""
        budgets = {"eval.sampling": context.recipe.eval.sampling.max_new_tokens}
        if context.grpo is not None:
            budgets["grpo.sampling"] = context.grpo.sampling.max_new_tokens
        where, most = min(budgets.items(), key=lambda item: item[1])
        lengths = answer_lengths(context)
        if not lengths:
            yield self.ok(self.unknown, most=most)
            return
        share, longest = sum(length > most for length in lengths) / len(lengths), max(lengths)
        if not share:
            yield self.ok(self.right, longest=longest, most=most)
            return
        status: Status = "fail" if share > 0.5 else "warn"
        yield self.outcome(status, self.cut, share=share, longest=longest, where=where, most=most)


class Temperature(Check):
    """Reads the sampling controls of the reinforcement stage."""

    name = "sampling/temperature"
    needs = "data"
    proves = Message("The rollouts of a group can differ from each other.", "同组的采样可以彼此不同。")
    how = Message(
        "Reads grpo.sampling.temperature and grpo.sampling.top_k.",
        "读取 grpo.sampling.temperature 和 grpo.sampling.top_k。",
    )
    cannot = Message(
        "How often they really differ depends on the policy; the run's frac_reward_zero_std shows it.",
        "它们实际多常不同取决于策略；训练中的 frac_reward_zero_std 会显示。",
    )
    right = Message(
        "rollouts at temperature {train:g}, evaluation at {eval:g}", "采样温度 {train:g}，评测温度 {eval:g}"
    )
    greedy = Message(
        "grpo.sampling.temperature is 0: all rollouts of a group are equal, and no group has contrast",
        "grpo.sampling.temperature 为 0：组内的采样全部相同，没有一组有差异",
        fix=Fix("set grpo.sampling.temperature to 1.0", "把 grpo.sampling.temperature 设为 1.0"),
    )
    one_token = Message(
        "grpo.sampling.top_k is 1: all rollouts of a group are equal, and no group has contrast",
        "grpo.sampling.top_k 为 1：组内的采样全部相同，没有一组有差异",
        fix=Fix("set grpo.sampling.top_k to 0, which cuts nothing", "把 grpo.sampling.top_k 设为 0（不截断）"),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome where rollouts are sampled."""
        if context.grpo is None:
            return
        sampling = context.grpo.sampling
        if sampling.temperature == 0:
            yield self.fail(self.greedy)
        elif sampling.top_k == 1:
            yield self.fail(self.one_token)
        else:
            yield self.ok(self.right, train=sampling.temperature, eval=context.recipe.eval.sampling.temperature)


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

    def run(self, context: Context) -> Iterator[Outcome]:
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
