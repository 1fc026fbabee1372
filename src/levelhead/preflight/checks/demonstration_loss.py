"""The supervised loss comes from the tokens of the demonstrations and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.checks.completion_only import CompletionOnly
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


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

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome where there is a supervised stage."""
        from levelhead.errors import InputError
        from levelhead.preflight.places import Pair, places_of

        if context.recipe.sft is None:
            return
        try:
            shown, listener = context.passes.sft
        except InputError as error:
            yield self.fail(self.no_demonstrations, error=str(error).splitlines()[0])
            return
        pairs = [Pair(pair.context_ids, pair.completion_ids, pair.prefix_group) for pair in shown]
        yield from self.judged(context, places_of(pairs, listener, shared=context.policy.packs_trees), 0.0)
