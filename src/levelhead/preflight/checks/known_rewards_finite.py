"""Reward functions return finite numbers for answers of known worth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


PROBED = 4
"""Prompts of a task whose answers are scored."""


class KnownRewardsFinite(Check):
    """Scores perfect, empty and nonsense answers to a few prompts."""

    name = "rewards/finite/TASK"
    needs = "rewards"
    proves = Message(
        "Reward functions return one finite number for perfect, empty and nonsense answers.",
        "对标准答案、空回答和胡乱的回答，奖励函数各返回一个有限的数。",
    )
    how = Message("Scores these answers to a few prompts of the task.", "给任务中几道题的这些回答打分。")
    cannot = Message("It tries a handful of answers.", "它只试少数几个回答。")
    right = Message("{kinds} answers have finite rewards", "{kinds} 类回答的奖励都是有限的数")
    wrong = Message(
        "{error}",
        "{error}",
        fix=Fix("correct the reward function: the message names it and the row", "修正奖励函数：消息中有函数名和行号"),
    )
    known_fix = Message("{error}", "{error}", fix=Fix("{fix}", "{fix}"))

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per task that scores single answers by rules."""
        from levelhead.errors import RewardError
        from levelhead.preflight.known import by_construction
        from levelhead.tasks.base import SingleTurnTask

        for name, task in context.setup.tasks.items():
            if not isinstance(task, SingleTurnTask) or task.rules is None:
                continue
            try:
                scores = by_construction(context, task.rules, context.prompts[name][:PROBED])
            except RewardError as error:
                context.unscorable.add(name)
                first = str(error).splitlines()[0]
                if error.fix:
                    yield self.fail(self.known_fix, name, error=first, fix=error.fix)
                else:
                    yield self.fail(self.wrong, name, error=first)
                continue
            yield self.ok(self.right, name, kinds=", ".join(scores))
