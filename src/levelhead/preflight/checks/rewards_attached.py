"""Each rollout carries the score of its own text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from levelhead.preflight.check import Check
from levelhead.preflight.message import Fix, Message
from levelhead.preflight.result import Outcome

if TYPE_CHECKING:
    from levelhead.preflight.context import PreflightContext
    from levelhead.tasks.base import SingleTurnTask


class RewardsAttached(Check):
    """Scores the sampled answers again, forwards and backwards."""

    name = "rewards/attached/TASK"
    needs = "rollouts"
    proves = Message("Each rollout carries the score of its own text.", "每条采样带的是自己文本的得分。")
    how = Message(
        "Scores the sampled answers again, forwards and backwards, and compares the scores and the texts.",
        "按正反两种顺序给采样的回答再打一次分，比较得分和文本。",
    )
    cannot = Message(
        "Two answers with the same score can be exchanged unseen. Rewards that sample at random only warn.",
        "得分相同的两个回答互换看不出来。随机打分的奖励只会引起警告。",
    )
    nothing = Message("no scored rollouts to compare", "没有打过分的采样可比较")
    right = Message("{count} rollouts carry the scores of their own answers", "{count} 条采样带的都是自己回答的得分")
    foreign = Message(
        "{off} of {count} rollouts are judged by a text that is not theirs: {text!r}",
        "{count} 条采样中有 {off} 条按不属于自己的文本打分：{text!r}",
        fix=Fix("decode the completion's own ids, and only these", "只解码这条输出自己的 id"),
    )
    out_of_step = Message(
        "{off} of {count} rollouts carry a score that is not their answer's ({carried:.3g} carried, {alone:.3g} when "
        "scored alone): rewards and completions are out of step",
        "{count} 条采样中有 {off} 条带的得分不是自己回答的（带的是 {carried:.3g}，单独打分为 {alone:.3g}）：奖励与输出"
        "错位",
        fix=Fix(
            "return one reward per completion, in the order of the completions",
            "每条输出返回一个奖励，顺序与输出一致",
        ),
    )
    by_order = Message(
        "{off} of {count} answers score differently when scored again in another order",
        "{count} 个回答中有 {off} 个换个顺序再打分时得分不同",
        fix=Fix(
            "fine for a reward that samples or compares answers; else correct it",
            "如果奖励本来就要采样或比较回答，这没有问题；否则请修正",
        ),
    )

    def run(self, context: PreflightContext) -> Iterator[Outcome]:
        """Yield one outcome per task of single answers."""
        if context.sampled.error is not None:
            return
        for name, task in context.scorable.items():
            if context.is_single(task):
                yield self._of_task(context, name, task)  # type: ignore[arg-type]

    def _of_task(self, context: PreflightContext, name: str, task: SingleTurnTask) -> Outcome:
        from levelhead.preflight.known import total_of
        from levelhead.tasks.base import Answer

        groups = [group for group in context.sampled.groups if group.prompt.task == name]
        pairs = [(g.prompt, r) for g in groups for r in g.rollouts if r.score]
        if not pairs:
            return self.ok(self.nothing, name)

        def again(order: Sequence[int]) -> dict[int, float]:
            answers = [Answer(pairs[i][0], pairs[i][1].text[-1], pairs[i][1].turns[-1].completion_ids) for i in order]
            scores = context.loop.run(task.rewarded(answers))
            return {i: total_of(score) for i, score in zip(order, scores, strict=True)}

        count = len(pairs)
        read = context.codec.decode
        foreign = [r.text[-1] for p, r in pairs if read(r.turns[-1].completion_ids, p.chat) != r.text[-1]]
        if foreign:
            return self.fail(self.foreign, name, off=len(foreign), count=count, text=foreign[0][:60])
        forward, backward = again(range(count)), again(range(count - 1, -1, -1))
        moved = [i for i in range(count) if forward[i] != backward[i]]
        off = [i for i in range(count) if pairs[i][1].reward != forward[i]]
        if moved:
            return self.warn(self.by_order, name, off=len(moved), count=count)
        if off:
            fields: dict[str, Any] = {"carried": pairs[off[0]][1].reward, "alone": forward[off[0]]}
            return self.fail(self.out_of_step, name, off=len(off), count=count, **fields)
        return self.ok(self.right, name, count=count)
