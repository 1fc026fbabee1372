"""Perfect answers score most, and empty ones and nonsense less."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, pstdev

from levelhead.preflight.check import LEVEL, Check, Context, Fix, Message, Outcome
from levelhead.preflight.known import by_construction
from levelhead.rollout.draws import derive
from levelhead.tasks.base import SingleTurnTask, Task

Scores = dict[str, list[float | None]]

PROBED = 4
"""Prompts of a task whose answers are scored."""
DOUBTED, REPLAYED = 96, 20
"""Prompts whose answers are scored where those of the first few are not in order: scores may be noisy; of episodes."""
FEWEST = 8
"""Perfect answers whose score must depend on the prompt before anything is made of it."""
AT_HOME = 0.7
"""Share of them that must score more under their own prompt; half do by chance, all where the oracle is perfect."""

BELONG = 0.01
"""p-value from which more of them score more under their own prompt than chance makes."""


class RewardsOrder(Check):
    """Scores answers of known worth."""

    name = "rewards/order/TASK"
    needs = "rewards"
    proves = Message(
        "The task's perfect answers score more than empty ones and nonsense, nothing scores more than they do, and "
        "each scores more under its own prompt than under another's, where the score depends on the prompt at all.",
        "标准答案得分高于空回答和胡乱的回答，没有什么得分更高；只要得分与题目有关，每个标准答案在自己的题下得分更高。",
    )
    how = Message(
        "Scores the oracle's answers, empty ones, nonsense, and perfect answers to other prompts; episodes are played.",
        "给标准答案、空回答、胡乱的回答和别题的标准答案打分；多轮回合则实际进行。",
    )
    cannot = Message(
        "A reward can be in order on these and still pay for a shortcut; rewards/constant looks for the commonest one. "
        "Where the oracle is a guess (a workflow that an endpoint runs), other answers may beat it.",
        "奖励在这些回答上次序正确，仍可能奖励取巧；rewards/constant 查找最常见的一种。标准答案只是猜测时，别的回答可能"
        "胜过它。",
    )
    on_top = Message("the oracle is on top: {scores}", "标准答案得分最高：{scores}")
    no_oracle = Message("no oracle to compare with: {scores}", "没有标准答案可比较：{scores}")
    flat = Message(
        "no oracle to compare with: {scores}; name an oracle column (tasks[].oracle) to see that right answers get "
        "more",
        "没有标准答案可比较：{scores}；指定 oracle 列（tasks[].oracle）才能看出正确答案是否得分更高",
    )
    _fix = Fix(
        "score a perfect answer, an empty one and nonsense by hand and correct the reward until they differ",
        "手工给标准答案、空回答和胡乱的回答各打一次分，修正奖励直到它们有区别",
    )
    none = Message("the reward scores none of the known answers", "奖励对已知的回答一个也没有打分", fix=_fix)
    empty_wins = Message(
        "a perfect answer scores {oracle:.3g} and an empty one {empty:.3g}: nothing is rewarded",
        "标准答案得 {oracle:.3g}，空回答得 {empty:.3g}：答对没有得到奖励",
        fix=_fix,
    )
    nonsense_wins = Message(
        "a perfect answer scores {oracle:.3g} and nonsense {gibberish:.3g}",
        "标准答案得 {oracle:.3g}，胡乱的回答得 {gibberish:.3g}",
        fix=_fix,
    )
    out_of_step = Message(
        "of {compared} perfect answers whose score depends on the prompt, {better} score more under their own than "
        "under another's: answers and columns are out of step ({scores})",
        "{compared} 个得分与题目有关的标准答案中，只有 {better} 个在自己的题下得分更高：回答与数据列错位（{scores}）",
        fix=Fix(
            "look whether row i's answer is judged by row i's columns, and whether the oracle is that row's",
            "检查第 i 行的回答是否按第 i 行的列打分，标准答案是否也取自这一行",
        ),
    )
    beaten = Message(
        "something scores more than the oracle on average: {scores}",
        "平均来看，有别的回答得分高于标准答案：{scores}",
        fix=Fix("look whether the oracle is perfect by this reward", "检查标准答案按这个奖励是否真的最好"),
    )
    empty_pays = Message(
        "the oracle is on top, but an empty answer beats other ones: {scores}",
        "标准答案得分最高，但空回答胜过别的回答：{scores}",
        fix=Fix(
            "saying nothing should never pay; give it the least reward", "什么都不写不应得分；请给空回答最低的奖励"
        ),
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task."""
        for name, task in context.scorable.items():
            prompts = context.prompts[name][:PROBED]
            scores = by_construction(context, task, prompts)
            outcome = self._judged(task, scores, 1.0)
            better, compared = _own_prompts(scores)
            if outcome.status != "pass" or better < compared:  # few scores may be out of order by chance
                most = DOUBTED if isinstance(task, SingleTurnTask) else REPLAYED
                more = list(itertools.islice(task.prompts("train", derive(context.seed, "order", name)), most))
                if len(more) > len(prompts):
                    level = LEVEL / len(context.setup.tasks)
                    outcome = self._judged(task, by_construction(context, task, more), level)
            yield outcome

    def _judged(self, task: Task, scores: Scores, level: float) -> Outcome:
        name = task.name
        by_kind = {kind: [s for s in values if s is not None] for kind, values in scores.items()}
        means = {kind: fmean(values) for kind, values in by_kind.items() if values}
        dropped = {kind: len(values) - len(by_kind[kind]) for kind, values in scores.items()}
        evidence = {"mean_reward": means, "not_scored": dropped, "answers_of_a_kind": len(scores["empty"])}
        listed = ", ".join(f"{kind} {mean:.3g}" for kind, mean in means.items())
        every = [s for values in by_kind.values() for s in values]
        if not every:
            return self.fail(self.none, name, evidence=evidence)
        if "oracle" not in means:
            # A reward for exact answers gives nothing to either: only an oracle tells it from a reward of nothing.
            flat = len(every) > 2 and pstdev(every) == 0
            return self.ok(self.flat if flat else self.no_oracle, name, evidence=evidence, scores=listed)
        if means["oracle"] <= means.get("empty", float("-inf")):
            return self.fail(self.empty_wins, name, evidence=evidence, oracle=means["oracle"], empty=means["empty"])
        if means["oracle"] <= means.get("gibberish", float("-inf")):
            shown = {kind: means[kind] for kind in ("oracle", "gibberish")}
            return self.fail(self.nonsense_wins, name, evidence=evidence, **shown)
        guesses = isinstance(task, SingleTurnTask) and task.guesses
        better, compared = (0, 0) if guesses else _own_prompts(scores)
        # Noisy rewards leave a good answer behind on some prompts: more often at home than chance is in step.
        if compared >= FEWEST and better <= AT_HOME * compared and sign_p(better, compared - better) > BELONG:
            fields = {"compared": compared, "better": better}
            return self.warn(self.out_of_step, name, evidence=evidence, scores=listed, **fields)
        rivals = [kind for kind in means if kind != "oracle" and not (guesses and kind == "other")]
        if any(_more_often(scores, kind, "oracle", level) for kind in rivals):
            return self.warn(self.beaten, name, evidence=evidence, scores=listed)
        if "empty" in means and any(_more_often(scores, "empty", kind, level) for kind in means):
            return self.warn(self.empty_pays, name, evidence=evidence, scores=listed)
        return self.ok(self.on_top, name, evidence=evidence, scores=listed)


def _own_prompts(scores: Scores) -> tuple[int, int]:
    """Return how many perfect answers score more under their own prompt than under another's, and how many differ.

    The same answer is compared with itself, so that a reward of its style alone has no say here.
    """
    own, elsewhere = scores.get("oracle", []), scores.get("other", [])
    pairs = [(a, b) for a, b in zip([*own[1:], *own[:1]], elsewhere, strict=False) if a is not None and b is not None]
    gaps = [a - b for a, b in pairs if abs(a - b) > 1e-9]
    return sum(gap > 0 for gap in gaps), len(gaps)


def _more_often(scores: Mapping[str, Sequence[float | None]], kind: str, other: str, level: float) -> bool:
    """Whether answers of one kind score more than those of another, on average and too often for chance."""
    pairs = [(a, b) for a, b in zip(scores[kind], scores[other], strict=True) if a is not None and b is not None]
    gaps = [a - b for a, b in pairs]
    if not gaps or sum(gaps) <= 1e-9 * len(gaps):
        return False
    return sign_p(sum(gap > 1e-9 for gap in gaps), sum(gap < -1e-9 for gap in gaps)) <= level


def sign_p(above: int, below: int) -> float:
    """Return the exact p-value of a sign test: the chance of so many ``above`` where either side is as likely."""
    n = above + below
    return min(1.0, math.fsum(math.comb(n, k) for k in range(above, n + 1)) / 2.0**n) if n else 1.0
