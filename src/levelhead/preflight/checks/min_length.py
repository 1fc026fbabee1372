"""Perfect answers are as long as min_new_tokens allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome, Status

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


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

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome; a failure where most answers are too short."""
        from levelhead.preflight.known import answer_lengths

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
        yield self.outcome(status, self.too_long, "", {}, {"short": short, "least": least, "shortest": shortest})
