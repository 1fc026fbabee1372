"""An estimator that tells turns apart is used so that its gradient is that of the expected reward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome
from levelhead.tasks.base import has_one_turn

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class CreditByTurn(Check):
    """Reads the estimator, ``loss.turns`` and whether tasks have episodes of several turns."""

    name = "rewards/credit-by-turn"
    needs = "data"
    proves = Message(
        "Credit by turn is unbiased where the policy decides how many turns an episode has.",
        "在由策略决定一局有多少轮时，按轮分配的功劳没有偏差。",
    )
    how = Message(
        "Reads grpo.advantage, grpo.loss.turns and the kind of each task.",
        "读取 grpo.advantage、grpo.loss.turns 和每个任务的种类。",
    )
    cannot = Message(
        "Whether episodes have unequal numbers of turns depends on the policy: completions and num_turns show it.",
        "各局轮数是否不同取决于策略：请看采样和 num_turns。",
    )
    right = Message("{kind}, turns: {turns}", "{kind}，各轮合并方式为 {turns}")
    one_turn = Message(
        "{kind} tells turns apart, and every answer here is one turn",
        "{kind} 区分各轮，而这里每个回答只有一轮",
    )
    stopping = Message(
        "{kind} has a baseline for each turn that an episode has: where the policy decides when to stop, the gradient "
        "leans towards fewer turns wherever turns earn something",
        "{kind} 给一局的每一轮各减一个基线：在由策略决定何时停止、而每轮都有奖励时，梯度会偏向更少的轮数",
        fix=Fix(
            "set grpo.advantage.kind to return_to_go, whose baseline is made of other rollouts alone",
            "把 grpo.advantage.kind 设为 return_to_go，它的基线只由其他采样得出",
        ),
    )
    mean = Message(
        "{kind} gives each turn its own advantage, and loss.turns: mean divides them by the turns of the episode, "
        "which the policy decides: turns of long episodes count for less",
        "{kind} 给每一轮各自的优势，而 loss.turns: mean 会除以该局的轮数（由策略决定）：长局里的每一轮算得更少",
        fix=Fix("set grpo.loss.turns to sum", "把 grpo.loss.turns 设为 sum"),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield outcomes where the estimator tells turns apart."""
        grpo = context.grpo
        estimator = None if grpo is None else grpo.advantage.make()
        if grpo is None or estimator is None or "turns_gkn" not in estimator.arrays:
            return
        kind = grpo.advantage.kind
        if all(has_one_turn(task) for task in context.setup.tasks.values()):
            yield self.ok(self.one_turn, kind=kind)
        elif estimator.biased_by_length:
            yield self.warn(self.stopping, kind=kind)
        elif grpo.loss.turns == "mean":
            yield self.warn(self.mean, kind=kind)
        else:
            yield self.ok(self.right, kind=kind, turns=grpo.loss.turns)
