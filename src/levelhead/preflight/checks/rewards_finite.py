"""Reward functions return finite numbers, or the answers on which they fail are few."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from levelhead.errors import RewardError, first_line
from levelhead.preflight.check import Check, Context, Fix, Message, Outcome, Status
from levelhead.preflight.known import by_construction
from levelhead.tasks.base import SingleTurnTask

PROBED = 4
"""Prompts of a task whose answers are scored."""


class _Finite(Check):
    """What is said of a reward function that fails."""

    wrong: Message
    known_fix = Message("{error}", "{error}", fix=Fix("{fix}", "{fix}"))

    def _failed(self, error: RewardError, of: str = "") -> Outcome:
        first = first_line(error)
        return (
            self.fail(self.known_fix, of, error=first, fix=error.fix)
            if error.fix
            else self.fail(self.wrong, of, error=first)
        )


class KnownRewardsFinite(_Finite):
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

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task that scores single answers by rules."""
        for name, task in context.setup.tasks.items():
            if not isinstance(task, SingleTurnTask) or task.rules is None:
                continue
            try:
                scores = by_construction(context, task.rules, context.prompts[name][:PROBED])
            except RewardError as error:
                context.unscorable.add(name)
                yield self._failed(error, name)
            else:
                yield self.ok(self.right, name, kinds=", ".join(scores))


class RewardsFinite(_Finite):
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

    def run(self, context: Context) -> Iterator[Outcome]:
        """Look at the error, if any, that scoring the rollouts met."""
        error = context.sampled.error
        yield self.ok(self.right, count=len(context.rollouts)) if error is None else self._failed(error)


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

    def run(self, context: Context) -> Iterator[Outcome]:
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
            yield self.outcome(status, self.many, task, evidence=evidence, error=str(tally.error), **fields)
