"""Where answers whose reward fails are dropped, most keep theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome, Status

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext


class RewardsDropped(Check):
    """Counts the sampled answers that were dropped."""

    name = "rewards/dropped/TASK"
    needs = "rollouts"
    proves = Message(
        "Where the recipe drops answers whose reward fails, most answers keep theirs.",
        "配方丢弃奖励出错的回答时，大多数回答仍有分数。",
    )
    how = Message("Counts the sampled answers that were dropped.", "统计被丢弃的采样回答。")
    cannot = Message(
        "Before a supervised stage a policy may fail on every answer; then it only warns.",
        "在监督微调之前，策略可能每个回答都出错；那时只警告。",
    )
    few = Message(
        "rewards failed on {dropped} of {answers} sampled answers", "{answers} 个采样回答中有 {dropped} 个的奖励出错"
    )
    many = Message(
        "rewards failed on {dropped} of {answers} sampled answers; the last one: {error}",
        "{answers} 个采样回答中有 {dropped} 个的奖励出错；最后一个：{error}",
        fix=Fix(
            "correct the reward function; tasks[].on_reward_error: stop names the row and the answer",
            "修正奖励函数；设 tasks[].on_reward_error: stop 会指出是哪一行、哪个回答",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per task that drops answers."""
        for task, tally in context.sampled.cost.tallies.items():
            if not tally.drops:
                continue
            fields: dict[str, Any] = {"dropped": tally.dropped, "answers": tally.answers}
            evidence = {"by": dict(tally.by)}
            if 2 * tally.dropped <= tally.answers:
                yield self.ok(self.few, task, evidence=evidence, **fields)
                continue
            hopeless = tally.dropped == tally.answers and context.recipe.sft is None
            status: Status = "fail" if hopeless else "warn"
            yield self.outcome(status, self.many, task, evidence, fields | {"error": str(tally.error)})
