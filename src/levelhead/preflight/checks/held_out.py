"""Nothing that is held out is trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class HeldOut(Check):
    """Compares the messages of training and held-out prompts."""

    name = "data/held-out/TASK"
    needs = "data"
    proves = Message("No held-out item asks what a training item asks.", "没有一道留出题与训练题相同。")
    how = Message(
        "Compares the messages of all training and held-out prompts, not their ids.",
        "比较所有训练题与留出题的消息内容，而不是编号。",
    )
    cannot = Message("It sees equal texts, not rephrased ones.", "它只能看出相同的文本，看不出改写过的。")
    apart = Message("none of {held} held-out items asks what a training item asks", "{held} 道留出题都与训练题不同")
    shared = Message(
        "{count} of {held} held-out items ask what a training item asks: {items}",
        "{held} 道留出题中有 {count} 道与训练题相同：{items}",
        fix=Fix(
            "drop duplicates from the data, or split so that what asks the same falls on one side",
            "去掉数据中的重复，或在划分时让相同的题落在同一边",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per task."""
        from levelhead.training.items import overlap

        for name, task in context.setup.tasks.items():
            same, held, _, _ = overlap(task)
            if same:
                fields: dict[str, Any] = {"count": len(same), "held": held, "items": ", ".join(same[:3])}
                yield self.fail(self.shared, name, evidence={"items": same[:8]}, **fields)
            else:
                yield self.ok(self.apart, name, held=held)
