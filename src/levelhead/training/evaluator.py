"""The evaluations of a run: scored, written down, and held against answers that need no reading."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from levelhead import metrics as metric
from levelhead.diagnosis.verdict import judge, short
from levelhead.message import Message, Phrase, joined
from levelhead.metrics import held_out
from levelhead.recipe import Recipe
from levelhead.recipe.tasks import Faithfulness, Function, Workflow
from levelhead.records import Event, StepRecord
from levelhead.tasks.base import SingleTurnTask
from levelhead.tasks.constant import Estimate, leaves_much
from levelhead.tasks.metering import use_metrics
from levelhead.tasks.mutations import scorer
from levelhead.training.collect import Collector
from levelhead.training.evaluate import Baselines, TaskResult, evaluate
from levelhead.training.fidelity import OTHERWISE, sampled_otherwise
from levelhead.training.loop import EventLoop
from levelhead.training.prepare import Setup
from levelhead.training.rundir import RunDir
from levelhead.training.shortcuts import shortcut
from levelhead.training.trackers import Trackers
from levelhead.training.unrated import SOME_EVALUATED, unrated_events

FEWEST = 16
"""Items below which the standard error of a gap says too little to warn of it."""
CONSTANT = "constant-answer"
"""Code of the event that a constant answer scores more than the policy that the reinforcement stage starts from."""
BEATS = Message(
    "{task}: a policy that always answers {answer} scores {constant:+.2f}, yours {score:+.2f}: GRPO will find it. "
    "{ways}",
    "{task}：一律回答 {answer} 的策略得 {constant:+.2f}，你的策略得 {score:+.2f}：GRPO 会学成那样。{ways}",
)
SHORTCUT = Message(
    "{task}: {share:.0%} of the held-out answers with full marks are paid without being right ({kind}), such as "
    "{answer}",
    "{task}：得满分的留出题回答中有 {share:.0%} 并不正确却得了分（{kind}），例如 {answer}",
)
LONGER = Message("Train longer before (sft.steps above {steps})", "请先多训练一些（sft.steps 大于 {steps}）")
TEACH = Message("Teach it first (sft.steps)", "请先用示范数据教会它（sft.steps）")
BALANCE = Message("weigh strata alike (tasks[].balance: true)", "让各分层同等计权（tasks[].balance: true）")
WITHHOLD = Message(
    "withhold fewer answers (tasks[].unanswerable below {share:g})",
    "减少无法回答的题（tasks[].unanswerable 小于 {share:g}）",
)
PAY_LESS = Message(
    "pay less for what a constant answer gets (tasks[].reward_weights)",
    "降低固定回答能得的分（tasks[].reward_weights）",
)
WORTH = Message("change what an answer is worth (tasks[].reward)", "改变回答的分值（tasks[].reward）")


class Evaluator:
    """Scores the policy of a run on held-out items.

    Args:
        setup: Recipe and tasks.
        collector: Draws and scores.
        loop: Where rewards are awaited.
        folder: Folder of the run.
    """

    def __init__(self, setup: Setup, collector: Collector, loop: EventLoop, folder: RunDir) -> None:
        self._setup, self._collector, self._folder, self._loop = setup, collector, folder, loop
        recipe = setup.recipe
        self._baselines = Baselines(setup.tasks, collector, loop, recipe.seed) if recipe.eval.constant else None
        self._timings: dict[str, float] = {}

    def score(self, items: int) -> dict[str, TaskResult]:
        """Score the policy on the first held-out items of each task."""
        start, recipe = time.perf_counter(), self._setup.recipe
        self._collector.at_step(*at_the_end(recipe))
        before = self._baselines.seconds if self._baselines else 0.0
        results = evaluate(self._setup.tasks, self._collector, recipe.eval, recipe.seed, items, self._baselines)
        self._timings = {metric.TIME_EVAL: time.perf_counter() - start}
        self._timings |= self._collector.use()
        if self._baselines:
            self._timings[metric.TIME_CONSTANT] = self._baselines.seconds - before
        return results

    def write(
        self, results: Mapping[str, TaskResult], step: int, stage: str | None, trackers: Trackers, offset: int
    ) -> None:
        """Write the numbers of the last evaluation as a line of ``metrics.jsonl``.

        Args:
            results: By task.
            step: Which it follows.
            stage: Which it ends (``start``, ``sft``, ``grpo``); ``None`` within one.
            trackers: Sent the numbers as well.
            offset: Steps of the stages before.
        """
        numbers = {
            held_out.NUMBER.of(name, key): value
            for name, result in results.items()
            for key, value in result.to_values().items()
        }
        timings = dict(self._timings)
        for name, result in results.items():
            if result.judge is not None:
                asked, paid = use_metrics({name: result.judge})
                numbers |= {held_out.NUMBER.of(name, key): v for key, v in asked.items()}
                timings |= {held_out.NUMBER.of(name, key): v for key, v in paid.items()}
        extra: dict[str, Any] = {} if stage is None else {held_out.EVAL_STAGE: stage}
        self._folder.append("metrics.jsonl", [StepRecord(step, "eval", extra | numbers, timings)])
        trackers.write(StepRecord(step, "eval", numbers), offset)

    def with_shortcuts(self, results: Mapping[str, TaskResult]) -> dict[str, TaskResult]:
        """Return the results of the last evaluation with what the best-paid answers look like, task by task."""
        looked: dict[str, TaskResult] = {}
        for name, result in results.items():
            task = self._setup.tasks[name]
            rules = task.rules if isinstance(task, SingleTurnTask) else None
            score = None if rules is None else scorer(rules, self._collector.completion_ids, self._loop.run)
            looked[name] = replace(result, shortcut=shortcut(task, result.groups, score))
        return looked

    def events(self, results: Mapping[str, TaskResult], step: int, before_grpo: bool = False) -> list[Event]:
        """Report what a person must know of an evaluation.

        Answers that the rewards failed on, that were sampled otherwise than asked, or are paid without being right; and
        before a reinforcement stage, constant answers that beat the policy.
        """
        recipe, events = self._setup.recipe, []
        events += unrated_events(step, {name: result.tally for name, result in results.items()}, SOME_EVALUATED)
        for name, result in results.items():
            if how := sampled_otherwise(self._setup.policy, result.groups, recipe.eval.sampling):
                evidence = {"task": name, "temperature": recipe.eval.sampling.temperature}
                text = OTHERWISE(**evidence, how=how)
                events.append(Event(step, "evaluated-otherwise", "critical", text, "warn", evidence))
            if result.shortcut is not None:
                cut = result.shortcut
                answer = Phrase(short(cut.answer), short(cut.answer, "zh"))
                text = SHORTCUT(task=name, share=cut.share, kind=cut.kind, answer=answer)
                evidence = {"task": name, "shortcut": cut.to_json()}
                events.append(Event(step, "reward-hacking", "warning", text, "warn", evidence))
        return [*events, *(self._constant_events(results, step) if before_grpo else ())]

    def _constant_events(self, results: Mapping[str, TaskResult], step: int) -> list[Event]:
        """Warn of each task where a constant answer beats the policy, before a stage that would find it."""
        events = []
        for name, result in results.items():
            if self._baselines is None or result.constant is None or result.over_constant is None:
                continue
            if result.n < FEWEST:
                continue
            gap, constant = result.over_constant.all, Estimate.of(result.constant.scores)
            if gap.score + 2 * gap.se >= 0:
                continue
            perfect, empty = self._baselines.perfect_and_empty(name, result.groups)
            fair = result.balanced.score - result.over_constant.balanced.score
            if not leaves_much(min(constant.score, fair), perfect, empty):
                continue
            text = BEATS(
                task=name,
                answer=Phrase(short(result.constant.answer), short(result.constant.answer, "zh")),
                constant=constant.score,
                score=result.score,
                ways=ways_out(self._setup.recipe, name),
            )
            evidence = {
                "task": name,
                "answer": result.constant.answer,
                "constant": constant.score,
                "policy": result.score,
                "over_constant": gap.score,
                "se": gap.se,
                **({} if perfect is None else {"perfect": perfect}),
                **({} if empty is None else {"empty": empty}),
            }
            events.append(Event(step, CONSTANT, "warning", text, "warn", evidence))
        return events

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to come to the same numbers."""
        return self._baselines.state_dict() if self._baselines else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        if self._baselines:
            self._baselines.load_state_dict(state)


def at_the_end(recipe: Recipe) -> tuple[int, int]:
    """Return the steps done, and those of the stage, by which rewards score an evaluation: always the last one.

    Where a reward changes while training goes on, the evaluations of a run would otherwise not measure the same.
    """
    last = recipe.grpo or recipe.sft
    return (last.steps, last.steps) if last is not None else (0, 0)


def selection(results: Mapping[str, TaskResult]) -> float:
    """Return what checkpoints are compared by: the mean over tasks of the balanced score on the shared items."""
    return statistics.fmean(result.selection for result in results.values())


def summary(
    tasks: Mapping[str, Mapping[str, Any]], stages: Sequence[str], seconds: float, best: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the document of ``summary.json``; each task has a verdict once the last stage has been evaluated.

    Args:
        tasks: Results by task and stage.
        stages: Of the recipe, in order.
        seconds: Spent so far.
        best: Stage and step of the policy in ``checkpoints/best``; empty where none is kept.
    """
    summary: dict[str, Any] = {"tasks": tasks, "seconds": round(seconds, 1)}
    if best:
        summary["best"] = dict(best)
    verdicts = {name: judge(results) for name, results in tasks.items() if stages and stages[-1] in results}
    if verdicts:
        summary["verdict"] = {name: verdict.to_json() for name, verdict in verdicts.items() if verdict is not None}
    return summary


def ways_out(recipe: Recipe, name: str) -> Phrase:
    """Return what to change so that reading pays before a constant answer does, as keys of the recipe."""
    (section,) = (task for task in recipe.tasks if task.title == name)
    ways = [LONGER(steps=recipe.sft.steps) if recipe.sft else TEACH(), BALANCE()]
    if isinstance(section, Faithfulness) and section.unanswerable > 0:
        ways.append(WITHHOLD(share=section.unanswerable))
    if isinstance(section, Function):
        ways.append(PAY_LESS())
    if isinstance(section, Workflow):
        ways.append(WORTH())
    return joined(ways, ", or ", "，或") + Phrase(".", "。")
