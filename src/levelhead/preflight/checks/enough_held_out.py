"""Enough items are held out for a verdict at the end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.diagnosis.verdict import FEW
from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class EnoughHeldOut(Check):
    """Counts the held-out items that the evaluations between stages score."""

    name = "data/enough-held-out/TASK"
    needs = "data"
    proves = Message("Enough items are held out for a verdict at the end.", "留出题足够多，结束时才能下结论。")
    how = Message(
        "Counts the held-out items that the evaluation after each stage scores.",
        "统计每个阶段之后评测所用的留出题数量。",
    )
    cannot = Message(
        "How many items a verdict takes depends on the size of the change: with more of them smaller changes show.",
        "下结论需要多少题取决于变化的大小：题越多，越小的变化也看得出。",
    )
    enough = Message("{n} held-out items are scored after each stage", "每个阶段之后对 {n} 道留出题打分")
    few = Message(
        "{n} held-out items are scored after each stage: below {least}, all but large changes stay undecided",
        "每个阶段之后只对 {n} 道留出题打分：少于 {least} 道时，除了很大的变化都无法下结论",
        fix=Fix(
            "raise tasks[].eval_fraction or eval.final_items, or collect more data",
            "调高 tasks[].eval_fraction 或 eval.final_items，或收集更多数据",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per task."""
        most = context.recipe.eval.final_items
        for name, task in context.setup.tasks.items():
            n = sum(1 for _ in itertools.islice(task.prompts("eval", 0), most))
            if n < FEW:
                yield self.warn(self.few, name, n=n, least=FEW)
            else:
                yield self.ok(self.enough, name, n=n)
