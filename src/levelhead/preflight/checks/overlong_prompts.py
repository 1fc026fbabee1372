"""Prompts have room in the context, or are counted where they have not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext

MANY = 0.1
"""Share of the prompts from which leaving them out or cutting them is worth a warning."""


class OverlongPrompts(Check):
    """Counts the prompts that ``tasks[].overlong`` left out or cut."""

    name = "data/overlong/TASK"
    needs = "data"
    proves = Message(
        "Every prompt and demonstration has room in the context beside the completion.",
        "每条提示词和示范都能与输出一起放进上下文。",
    )
    how = Message("Counts what tasks[].overlong left out or cut.", "统计 tasks[].overlong 去掉或截短的提示词。")
    cannot = Message(
        "It does not judge whether a prompt that was cut still holds what its answer needs.",
        "它不判断截短后的提示词是否仍含有回答所需的内容。",
    )
    right = Message("every prompt has room in the context", "每条提示词都放得进上下文")
    _dropped = (
        "{count} of {prompts} prompts have no room in the context ({room:,} tokens) and are left out",
        "{prompts} 条提示词中有 {count} 条放不进上下文（{room:,} 个 token），已去掉",
    )
    _cut = (
        "{count} of {prompts} prompts have no room in the context ({room:,} tokens) and are cut on the left",
        "{prompts} 条提示词中有 {count} 条放不进上下文（{room:,} 个 token），已从左侧截短",
    )
    _fix = Fix(
        "choose a model with a longer context, or lower sampling.max_new_tokens, if so many are wanted",
        "如果需要这么多，请选上下文更长的模型，或减小 sampling.max_new_tokens",
    )
    dropped, cut = Message(*_dropped), Message(*_cut)
    many_dropped, many_cut = Message(*_dropped, fix=_fix), Message(*_cut, fix=_fix)

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per task."""
        for name in context.setup.tasks:
            counts = context.setup.overlong.get(name)
            if counts is None:
                yield self.ok(self.right, name)
                continue
            count = counts.train + counts.eval
            fields: dict[str, Any] = {"count": count, "prompts": counts.prompts, "room": counts.room}
            if count > MANY * counts.prompts:
                yield self.warn(self.many_dropped if counts.kind == "drop" else self.many_cut, name, **fields)
            else:
                yield self.ok(self.dropped if counts.kind == "drop" else self.cut, name, **fields)
