"""Reward functions return finite numbers for the sampled answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class RewardsFinite(Check):
    """Scores the shared rollouts through the run's own collector."""

    name = "rewards/finite"
    needs = "rollouts"
    proves = Message(
        "Reward functions return one finite number for each sampled answer, in time.",
        "奖励函数及时地为每个采样的回答返回一个有限的数。",
    )
    how = Message("Scores the shared rollouts through the run's own collector.", "用训练自己的流程给共享的采样打分。")
    cannot = Message(
        "An answer that was not sampled here may still break them; tasks[].on_reward_error says what happens then.",
        "这里没有采样到的回答仍可能使它出错；tasks[].on_reward_error 决定那时怎么办。",
    )
    right = Message("{count} sampled answers have finite rewards", "{count} 个采样回答的奖励都是有限的数")
    wrong = Message(
        "{error}",
        "{error}",
        fix=Fix(
            "correct the function (the message names it and the row), or set tasks[].on_reward_error: drop",
            "修正奖励函数（消息中有函数名和行号），或设 tasks[].on_reward_error: drop",
        ),
    )
    known_fix = Message("{error}", "{error}", fix=Fix("{fix}", "{fix}"))

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome."""
        error = context.sampled.error
        if error is None:
            yield self.ok(self.right, count=len(context.rollouts))
        elif error.fix:
            yield self.fail(self.known_fix, error=str(error).splitlines()[0], fix=error.fix)
        else:
            yield self.fail(self.wrong, error=str(error).splitlines()[0])
