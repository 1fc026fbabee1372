"""No answer that needs no reading pays too well."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from levelhead.diagnosis.verdict import short
from levelhead.preflight.check import Check, Context, Fix, Message, Outcome
from levelhead.records import Prompt
from levelhead.rollout.draws import derive
from levelhead.tasks.base import SingleTurnTask, Task
from levelhead.tasks.constant import Constant, ConstantSearch, Estimate, leaves_much

ITEMS = 96
"""Training prompts of a task that constant answers are scored on."""
PULL = 0.25
"""Share of the way from an empty answer to a perfect one by which a constant answer must beat blind ones."""
PAYS = 0.4
"""Share of that way that a constant answer must come to be worth settling on."""
GIVEN_UP = 0.4
"""Share of that way below which a constant answer has given a stratum up."""
FEWEST = 8
"""Perfect answers beside which a constant one is judged, at least."""
ERRORS = 3.0
"""Standard errors by which a constant answer must score more than perfect ones for the reward to be doubted."""


class ConstantAnswer(Check):
    """Looks for the best answer that is the same for every prompt, and holds it beside perfect and empty ones."""

    name = "rewards/constant/TASK"
    needs = "rewards"
    proves = Message(
        "No answer that needs no reading pays more than right ones; and where a supervised stage comes first on a "
        "model made from scratch (preset: tiny), none pays so well that a policy that has only learnt the form would "
        "settle on it.",
        "没有不用读题的回答比正确答案得分更高；对从头训练的模型（preset: tiny）先做监督微调时，也没有哪个得分高到只学会"
        "格式的策略会停在那里。",
    )
    how = Message(
        "Scores candidate constant answers on about a hundred training prompts, beside perfect, empty and misplaced "
        "ones.",
        "在约一百道训练题上给候选的固定回答打分，与标准答案、空回答和错位的答案相比。",
    )
    cannot = Message(
        "What the policy itself scores is not known here: the evaluation before the reinforcement stage compares it "
        "with the best constant answer. Shortcuts that read a little of the prompt are not found, nor are scripts for "
        "episodes.",
        "策略自己的得分在这里不得而知：强化学习阶段之前的评测会把它与最好的固定回答相比。读一点题的取巧办法找不到，多"
        "轮回合的固定脚本也不在此列。",
    )
    nothing = Message("no constant answer to compare with", "没有固定回答可比较")
    right = Message(
        "a policy that always answers {answer} scores {constant:+.2f}, a perfect one {perfect:+.2f}{empty}",
        "一律回答 {answer} 的策略得 {constant:+.2f}，标准答案得 {perfect:+.2f}{empty}",
    )
    no_oracle = Message(
        "a policy that always answers {answer} scores {constant:+.2f}{empty}",
        "一律回答 {answer} 的策略得 {constant:+.2f}{empty}",
    )
    and_empty = Message(", an empty answer {empty:+.2f}", "，空回答得 {empty:+.2f}")
    over_perfect = Message(
        "a policy that always answers {answer} scores {constant:+.2f}, {more:.2g} more than perfect ones: being right "
        "is not what is paid",
        "一律回答 {answer} 的策略得 {constant:+.2f}，比标准答案还高 {more:.2g}：奖励给的不是答对",
        fix=Fix(
            "look what the reward pays besides right answers (length, phrases, form), and whether the oracle is right",
            "检查奖励除了答对之外还给什么加分（长度、套话、格式），以及标准答案是否正确",
        ),
    )
    _fix = Fix(
        "train longer before (sft.steps above {steps}), or weigh strata alike (tasks[].balance: true)",
        "之前多训练一些（sft.steps 大于 {steps}），或让各分层同等计权（tasks[].balance: true）",
    )
    trap = Message(
        "a policy that always answers {answer} scores {constant:+.2f}, and one that has the form but does not read "
        "{blind:+.2f}: GRPO will find it unless SFT teaches reading",
        "一律回答 {answer} 的策略得 {constant:+.2f}，只会格式而不读题的策略得 {blind:+.2f}：除非 SFT 教会读题，GRPO 会"
        "学成那样",
        fix=_fix,
    )
    gives_up = Message(
        "a policy that always answers {answer} scores {constant:+.2f}, though only {low:+.2f} where {stratum}: GRPO "
        "will find it unless SFT teaches reading",
        "一律回答 {answer} 的策略得 {constant:+.2f}，虽然在 {stratum} 的题上只得 {low:+.2f}：除非 SFT 教会读题，GRPO "
        "会学成那样",
        fix=_fix,
    )

    def run(self, context: Context) -> Iterator[Outcome]:
        """Yield one outcome per task of single answers that scores by rules."""
        if context.grpo is None or not context.recipe.eval.constant:
            return
        for name, task in context.scorable.items():
            # Browsers and servers are played by evaluations alone: here they would take minutes.
            if isinstance(task, SingleTurnTask) and task.rules is not None:
                yield self._of_task(context, name, task)

    def _of_task(self, context: Context, name: str, task: SingleTurnTask) -> Outcome:
        search = ConstantSearch(task, context.collector().completion_ids, derive(context.seed, "candidates", name))
        prompts = list(itertools.islice(task.prompts("train", derive(context.seed, "constant", name)), ITEMS))
        constant = context.loop.run(search.best(prompts))
        if constant is None:
            return self.ok(self.nothing, name)
        perfect, empty = context.loop.run(search.perfect_and_empty(prompts))
        blind = context.loop.run(search.blind(prompts))
        score = Estimate.of(constant.scores)
        fields: dict[str, Any] = {"answer": short(constant.answer), "constant": score.score}
        evidence = {
            "answer": constant.answer,
            "constant": score.to_json(),
            "perfect": perfect,
            "empty": empty,
            "blind": None if blind is None else blind.to_json(),
            "items": len(prompts),
        }
        if not task.guesses:
            perfect_scores = context.loop.run(search.perfect(prompts))
            gaps = [its - own for its, own in zip(constant.scores, perfect_scores, strict=True) if own is not None]
            more = Estimate.of(gaps) if len(gaps) >= FEWEST else None
            if more is not None and more.score > max(ERRORS * more.se, 1e-9):
                return self.warn(self.over_perfect, name, evidence=evidence, more=more.score, **fields)
        sft = context.recipe.sft
        # A policy that has been trained before may read already: the evaluation before GRPO measures it.
        untaught = context.recipe.model.preset == "tiny"
        if sft is not None and untaught and leaves_much(_balanced(task, prompts, constant), perfect, empty):
            trap = self._trap(task, prompts, constant, perfect, empty, blind)
            if trap is not None:
                return self.warn(trap[0], name, evidence=evidence, steps=sft.steps, **fields, **trap[1])
        shown = "" if empty is None else self.and_empty(empty=empty)
        if perfect is None:
            return self.ok(self.no_oracle, name, evidence=evidence, empty=shown, **fields)
        return self.ok(self.right, name, evidence=evidence, perfect=perfect, empty=shown, **fields)

    def _trap(
        self,
        task: Task,
        prompts: Sequence[Prompt],
        constant: Constant,
        perfect: float | None,
        empty: float | None,
        blind: Estimate | None,
    ) -> tuple[Message, dict[str, object]] | None:
        """Return why a policy of after SFT, which does not exist yet, would settle on a constant answer.

        Supervised steps teach the form first and reading later.  A policy that has learnt the form alone writes answers
        that belong to other prompts; perfect answers dealt to the wrong prompts score what it would (``blind``).  The
        answer is a trap where it beats these by a quarter of the way from an empty answer to a perfect one, or where it
        earns two fifths of that way and yet gives a whole stratum up: then it lives on a base rate.
        """
        if perfect is None or empty is None or perfect <= empty:
            return None
        width, score = perfect - empty, Estimate.of(constant.scores)
        if blind is not None:
            pull, error = score.score - blind.score, (score.se**2 + blind.se**2) ** 0.5
            if pull > PULL * width and pull > 2 * error:
                return self.trap, {"blind": blind.score}
        if (score.score - empty) / width < PAYS:
            return None
        for name, scores in _by_stratum(task, prompts, constant).items():
            low = Estimate.of(scores).score
            if (low - empty) / width < GIVEN_UP:
                return self.gives_up, {"low": low, "stratum": name}
        return None


def _balanced(task: Task, prompts: Sequence[Prompt], constant: Constant) -> float:
    """Mean over all items or over strata alike, whichever is less: an easy stratum may be most of the items."""
    from levelhead.training.evaluate import balanced_mean, main_stratum

    main = [main_stratum(task, prompt) for prompt in prompts]
    return min(balanced_mean(constant.scores, main).score, Estimate.of(constant.scores).score)


def _by_stratum(task: Task, prompts: Sequence[Prompt], constant: Constant) -> Mapping[str, list[float]]:
    scores_by_stratum: dict[str, list[float]] = {}
    for prompt, score in zip(prompts, constant.scores, strict=True):
        for key, value in task.strata(prompt).items():
            scores_by_stratum.setdefault(f"{key} = {value}", []).append(score)
    return {name: scores for name, scores in scores_by_stratum.items() if len(scores) > 1}
