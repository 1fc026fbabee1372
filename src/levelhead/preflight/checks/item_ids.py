"""Training items can be told apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class ItemIds(Check):
    """Reads the ids of one epoch."""

    name = "data/ids/TASK"
    needs = "data"
    proves = Message("Every training item has an id of its own.", "每道训练题都有唯一的编号。")
    how = Message("Reads the ids of one epoch.", "读取一轮数据的编号。")
    cannot = Message("It does not see two items with equal text and different ids.", "它看不出文本相同而编号不同的题。")
    unique = Message("{items} training items have ids of their own", "{items} 道训练题各有编号")
    repeated = Message(
        "{count} of {items} training items have the id of another, and are sampled with the same random numbers",
        "{items} 道训练题中有 {count} 道与别的题编号相同，采样时会用同样的随机数",
        fix=Fix("give each item an id of its own", "给每道题一个唯一的编号"),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per task."""
        for name, task in context.setup.tasks.items():
            ids = [prompt.id for prompt in task.prompts("train", 0)]
            count = len(ids) - len(set(ids))
            if count:
                yield self.fail(self.repeated, name, count=count, items=len(ids))
            else:
                yield self.ok(self.unique, name, items=len(ids))
