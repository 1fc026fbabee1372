"""Perfect answers fit into max_new_tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class MaximumLength(Check):
    """Compares max_new_tokens with the lengths of perfect answers."""

    name = "sampling/max-length"
    needs = "data"
    proves = Message(
        "Perfect answers fit into max_new_tokens, in training and in evaluation.",
        "训练和评估时，标准答案都在 max_new_tokens 之内。",
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

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome; a failure where most answers are cut."""
        from levelhead.preflight.known import answer_lengths

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
        fields: dict[str, Any] = {"share": share, "longest": longest, "where": where, "most": most}
        yield self.outcome("fail" if share > 0.5 else "warn", self.cut, "", {}, fields)
