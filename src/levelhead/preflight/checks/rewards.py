"""Rewards are finite, lie in their range, survive the tokenizer, and stay with their answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from levelhead.errors import RewardError, first_line
from levelhead.preflight.check import Check, Context, Fix, Message, Outcome, Status
from levelhead.preflight.known import by_construction, same, scores_of, tasks_known, total_of
from levelhead.tasks.base import Answer, SingleTurnTask

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


SHORT_OF = 0.1
"""Share of the declared range by which a perfect answer may miss its top before it is a failure."""


class RewardsRange(Check):
    """Compares scores of known answers with the declared least and most reward."""

    name = "rewards/range/TASK"
    needs = "rewards"
    proves = Message(
        "A perfect answer gets the declared most, the worst the declared least, and nothing lies outside.",
        "标准答案得到声明的最大值，最差的得到最小值，没有超出范围的。",
    )
    how = Message(
        "Scores perfect, empty and wrong answers and compares with the range that the task declares.",
        "给标准答案、空回答和错误答案打分，与任务声明的范围相比。",
    )
    cannot = Message(
        "A function without tasks[].reward_range declares none. The worst answer may not be among those tried.",
        "没有 tasks[].reward_range 的函数没有声明范围；最差的回答可能不在试过的之中。",
    )
    undeclared = Message("the task declares no least and most reward", "任务没有声明奖励的最小值和最大值")
    right = Message("rewards lie from {low:g} to {high:g}", "奖励在 {low:g} 到 {high:g} 之间")
    outside = Message(
        "a reward of {reward:.4g} lies outside of the declared {low:g} to {high:g}",
        "奖励 {reward:.4g} 超出了声明的范围 {low:g} 到 {high:g}",
        fix=Fix("correct the reward, or what the task declares", "修正奖励，或修正任务声明的范围"),
    )
    unreachable = Message(
        "a perfect answer gets {reward:.4g} and the most is {high:g}: nobody can reach the top",
        "标准答案得 {reward:.4g}，而最大值为 {high:g}：谁也达不到最高分",
        fix=Fix("correct the reward or the perfect answer", "修正奖励或标准答案"),
    )
    no_floor = Message(
        "of {count} answers, empty ones and nonsense among them, none gets the declared least of {low:g} (the worst "
        "has {reward:.4g})",
        "{count} 个回答（包括空回答和胡乱的回答）中没有一个得到声明的最小值 {low:g}（最差的得 {reward:.4g}）",
        fix=Fix(
            "a floor that nothing reaches hides how bad an answer is: declare it",
            "没有回答能达到的下限看不出回答有多差：请声明真实的最小值",
        ),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task that scores by rules."""
        for name, probes, scores in tasks_known(context):
            totals = [score.total for score in scores if score is not None]
            if probes.task.reward_range is None or not totals:
                yield self.ok(self.undeclared, name)
                continue
            low, high = probes.task.reward_range
            pairs = zip(probes.kinds, scores, strict=True)
            perfect = [s.total for kind, s in pairs if kind == "oracle" and s is not None]
            slack = 1e-6 * max(1.0, high - low)
            outside = [total for total in totals if not low - slack <= total <= high + slack]
            if outside:
                yield self.fail(self.outside, name, reward=outside[0], low=low, high=high)
            elif perfect and min(perfect) < high - slack:
                report = self.fail if high - min(perfect) > SHORT_OF * (high - low) else self.warn
                yield report(self.unreachable, name, reward=min(perfect), high=high)
            elif min(totals) > low + slack:
                yield self.warn(self.no_floor, name, count=len(totals), low=low, reward=min(totals))
            else:
                yield self.ok(self.right, name, low=low, high=high)


class RewardsRoundTrip(Check):
    """Encodes and decodes answers of known worth, and scores both texts."""

    name = "rewards/round-trip/TASK"
    needs = "rewards"
    proves = Message("An answer scores the same after it has been tokens.", "回答变成 token 再还原之后得分不变。")
    how = Message(
        "Encodes and decodes answers of known worth and scores both texts.",
        "把已知好坏的回答编码再解码，给两份文本打分。",
    )
    cannot = Message(
        "It looks at perfect and made-up answers, not at everything that a policy may write.",
        "它只看标准答案和人为的回答，看不到策略可能写出的一切。",
    )
    right = Message(
        "{count} answers score the same as text and as tokens ({changed} texts differ)",
        "{count} 个回答作为文本和作为 token 得分相同（{changed} 份文本有变化）",
    )
    changed = Message(
        "{off} of {count} answers score otherwise once they have been tokens ({before:.4g} before, {after:.4g} after): "
        "{text!r} came back as {now!r}",
        "{count} 个回答中有 {off} 个变成 token 再还原之后得分不同（之前 {before:.4g}，之后 {after:.4g}）：{text!r} 变"
        "成了 {now!r}",
        fix=Fix(
            "the tokenizer loses what the reward looks for (white space, special tokens): let it do without",
            "分词器丢掉了奖励要找的内容（空白、特殊 token）：让奖励不依赖它们",
        ),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task that scores by rules."""
        from levelhead.text.spans import common_prefix

        for name, probes, scores in tasks_known(context):
            back = [replace(a, text=context.codec.decode(a.token_ids, a.prompt.chat)) for a in probes.answers]
            after = scores_of(context, probes, back)
            again = scores_of(context, probes, probes.answers)  # what is not steady is not the tokens' doing
            rows = enumerate(zip(probes.kinds, scores, after, again, strict=True))
            off = [i for i, (kind, a, b, c) in rows if kind != "gibberish" and not same(a, b) and same(a, c)]
            if not off:
                changed = sum(a.text != b.text for a, b in zip(probes.answers, back, strict=True))
                yield self.ok(self.right, name, count=len(back), changed=changed)
                continue
            i = min(off, key=lambda at: probes.kinds[at] != "oracle")
            text, now = probes.answers[i].text, back[i].text
            near = slice(max(0, common_prefix(text, now) - 20), common_prefix(text, now) + 20)
            counts = {"off": len(off), "count": len(back)}
            totals = {"before": total_of(scores[i]), "after": total_of(after[i])}
            evidence = {"text": text[:200], "after": now[:200]}
            yield self.fail(self.changed, name, evidence=evidence, text=text[near], now=now[near], **counts, **totals)


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

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task of single answers."""
        if context.sampled.error is not None:
            return
        for name, task in context.scorable.items():
            if isinstance(task, SingleTurnTask):
                yield self._of_task(context, name, task)

    def _of_task(self, context: Context, name: str, task: SingleTurnTask) -> Outcome:
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
        if moved := sum(forward[i] != backward[i] for i in range(count)):
            return self.warn(self.by_order, name, off=moved, count=count)
        if off := [i for i in range(count) if pairs[i][1].reward != forward[i]]:
            carried, alone = pairs[off[0]][1].reward, forward[off[0]]
            return self.fail(self.out_of_step, name, off=len(off), count=count, carried=carried, alone=alone)
        return self.ok(self.right, name, count=count)
