"""Scoring on held-out items: the same items every time, in the same order, beside what reading nothing would get."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from levelhead.metrics import held_out
from levelhead.recipe.training import Evaluation
from levelhead.records import Group, Prompt, Rollout
from levelhead.rollout.draws import derive
from levelhead.tasks.base import Task
from levelhead.tasks.constant import Constant, ConstantSearch, Estimate
from levelhead.tasks.metering import JudgeUse, RewardTally, logged_metrics, merge
from levelhead.training.collect import Collector
from levelhead.training.loop import EventLoop
from levelhead.training.shortcuts import Shortcut

MEANINGFUL = (held_out.ACCURACY, held_out.EXACT_MATCH, held_out.QUOTED, held_out.ABSTAINED, held_out.SUCCESS)
"""Metrics of a task that mean something on one stratum."""
BOUNDED = 64
"""Prompts whose perfect answers are scored."""
REMEMBERED = 128
"""Different answers of a task that are remembered as candidates, the most frequent ones."""
LONGEST = 2000
"""Characters of an answer that is remembered."""


NOTHING = Estimate(0.0, 0.0)
"""Estimate over no items."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """Held-out result on the prompts of one stratum.

    Attributes:
        result: Mean reward and its standard error.
        n: Items.
        metrics: Those of the task's numbers that mean something there.
        constant: What the best constant answer to all items scores on these.
        over_constant: What the policy scores above it, paired over items.
    """

    result: Estimate
    n: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    constant: Estimate | None = None
    over_constant: Estimate | None = None

    def to_json(self) -> dict[str, object]:
        """The stratum as a dict for ``summary.json``."""
        row: dict[str, object] = {**self.result.to_json(), "n": self.n, "metrics": dict(self.metrics)}
        for name, estimate in (("constant", self.constant), ("over_constant", self.over_constant)):
            if estimate is not None:
                row[name] = estimate.to_json()
        return row


@dataclass(frozen=True, slots=True)
class OverConstant:
    """How far a policy is above the best constant answer, paired over items.

    Attributes:
        all: Over all items alike.
        balanced: Over strata alike, above the answer that is best so.
    """

    all: Estimate
    balanced: Estimate

    def to_json(self) -> dict[str, object]:
        """The gain as a dict for ``summary.json``."""
        return {**self.all.to_json(), "balanced": self.balanced.to_json()}


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Held-out result of one task.

    Attributes:
        score: Mean reward.
        se: Its standard error.
        validity: Share of rollouts that parsed.
        length: Mean completion tokens of a rollout.
        n: Items.
        metrics: The task's own numbers.
        groups: The rollouts, one a group.
        balanced: Mean over strata of their mean rewards; its error is ``sqrt(sum se^2) / S``.  Strata are those of the
            first key that the task names for a prompt (``condition``, ``answerable``, ``domain``).  Where it names
            none, all prompts are one stratum.
        selection: ``balanced`` over the items that every evaluation of a run has in common: what checkpoints are
            compared by.
        selection_se: Its standard error.
        common: How many groups, from the first, hold those items.
        constant: The best constant answer; ``None`` where nobody looked for one.
        over_constant: The score above it.
        strata: Result by ``key=value``, of every key.
        judge: What the task's judge has done and cost, where it has one.
        tally: What the task's reward functions could not rate.
        shortcut: How the policy is paid without being right, where that was looked for and seen.
    """

    score: float
    se: float
    validity: float
    length: float
    n: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    groups: Sequence[Group] = ()
    balanced: Estimate = NOTHING
    selection: float = 0.0
    selection_se: float = 0.0
    common: int = 0
    constant: Constant | None = None
    over_constant: OverConstant | None = None
    strata: Mapping[str, Stratum] = field(default_factory=dict)
    judge: JudgeUse | None = None
    tally: RewardTally = field(default_factory=RewardTally)
    shortcut: Shortcut | None = None

    def to_json(self) -> dict[str, object]:
        """The result as a dict for ``summary.json``."""
        row: dict[str, object] = {
            "score": self.score,
            "se": self.se,
            "validity": self.validity,
            "length": self.length,
            "n": self.n,
            "metrics": dict(self.metrics),
            "balanced": self.balanced.to_json(),
            "strata": {name: stratum.to_json() for name, stratum in self.strata.items()},
        }
        if self.constant is not None and self.over_constant is not None:
            row["constant"] = {"answer": self.constant.answer, **Estimate.of(self.constant.scores).to_json()}
            row["over_constant"] = self.over_constant.to_json()
        if self.shortcut is not None:
            row["shortcut"] = self.shortcut.to_json()
        return row

    def to_values(self) -> dict[str, float]:
        """Numbers for ``metrics.jsonl``, by the end of their names."""
        values = {
            held_out.SCORE: self.score,
            held_out.SE: self.se,
            held_out.VALIDITY: self.validity,
            held_out.LENGTH: self.length,
            held_out.BALANCED: self.balanced.score,
        }
        if self.over_constant is not None:
            values[held_out.OVER_CONSTANT] = self.over_constant.all.score
        for name, stratum in self.strata.items():
            values[held_out.STRATUM_SCORE.of(*name.split("=", 1))] = stratum.result.score
        return {**values, **self.metrics}


class Baselines:
    """Finds the best constant answer to each task's items, and remembers what policies have answered.

    Args:
        tasks: By name.
        collector: Its codec makes the tokens of an answer.
        loop: Where rewards and environments are awaited.
        seed: The run's.
    """

    def __init__(self, tasks: Mapping[str, Task], collector: Collector, loop: EventLoop, seed: int) -> None:
        self._loop = loop
        self._searches = {
            name: ConstantSearch(task, collector.completion_ids, derive(seed, "constant", name))
            for name, task in tasks.items()
        }
        self._seen: dict[str, Counter[str]] = {name: Counter() for name in tasks}
        self.seconds, self._closed = 0.0, False

    def as_in(self, state: Mapping[str, Any]) -> None:
        """Consider the answers that a run has seen, and no others, so that its best constant answers are found again.

        Args:
            state: The run's :meth:`state_dict`; an empty one changes nothing.
        """
        self.load_state_dict(state)
        self._closed = bool(state.get("seen"))

    def find(self, name: str, groups: Sequence[Group], weights: Sequence[float] | None = None) -> Constant | None:
        """Return the best constant answer to the prompts of some groups, their answers among the candidates."""
        start = time.perf_counter()
        seen = self._seen[name] if self._closed else self._seen[name] + _answers(groups)
        search = self._searches[name].best([group.prompt for group in groups], seen, weights)
        with self._loop.giving_up():
            constant = self._loop.run(search)
        self.seconds += time.perf_counter() - start
        return constant

    def perfect_and_empty(self, name: str, groups: Sequence[Group]) -> tuple[float | None, float | None]:
        """Return the mean score of perfect answers, and of an empty one, to some of the prompts."""
        prompts = [group.prompt for group in groups[:BOUNDED]]
        with self._loop.giving_up():
            return self._loop.run(self._searches[name].perfect_and_empty(prompts))

    def remember(self, results: Mapping[str, TaskResult]) -> None:
        """Take the answers of an evaluation that is complete as candidates for those to come."""
        for name, result in () if self._closed else results.items():
            frequent = (self._seen[name] + _answers(result.groups)).most_common(REMEMBERED)
            self._seen[name] = Counter(dict(frequent))

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to find the same answers."""
        slow = [name for name, search in self._searches.items() if search.slow]
        return {"seen": {name: dict(seen) for name, seen in self._seen.items()}, "slow": slow}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        for name, seen in state.get("seen", {}).items():
            self._seen[name] = Counter(seen)
        for name in set(state.get("slow", ())) & set(self._searches):
            self._searches[name].slow = True


def evaluate(
    tasks: Mapping[str, Task],
    collector: Collector,
    config: Evaluation,
    seed: int,
    items: int,
    baselines: Baselines | None = None,
) -> dict[str, TaskResult]:
    """Score the policy on the first ``items`` held-out items of each task, in the order that the seed gives.

    Args:
        tasks: By name.
        collector: Draws and scores.
        config: The recipe's ``eval`` section.
        seed: The run's.
        items: How many, where there are that many.
        baselines: Finds the best constant answers; they are not looked for without it.
    """
    common = min(config.items, config.final_items)
    results: dict[str, TaskResult] = {}
    for name, task in tasks.items():
        prompts = list(itertools.islice(task.prompts("eval", derive(seed, "eval", name)), items))
        groups: list[Group] = []
        judges: dict[str, JudgeUse] = {}
        tallies: dict[str, RewardTally] = {}
        for start in range(0, len(prompts), config.batch_size):
            chunk = prompts[start : start + config.batch_size]
            scored = collector.run(chunk, 1, config.sampling, derive(seed, "eval-draws", name))
            groups += scored.groups
            judges = merge(judges, scored.judges)
            tallies = merge(tallies, scored.tallies)
        answered = [group for group in groups if group.rollouts]
        compared = [group for group in groups[:common] if group.rollouts]
        result, tally = _result(task, answered, compared, baselines), tallies.get(name, RewardTally())
        logged = logged_metrics({name: tally}, {*result.to_values(), held_out.OVER_CONSTANT})
        results[name] = replace(result, metrics={**result.metrics, **logged}, judge=judges.get(name), tally=tally)
    if baselines is not None:
        baselines.remember(results)
    return results


def _result(task: Task, groups: Sequence[Group], compared: Sequence[Group], baselines: Baselines | None) -> TaskResult:
    pairs: list[tuple[Prompt, Rollout]] = [(group.prompt, group.rollouts[0]) for group in groups]
    if not pairs:
        return TaskResult(0.0, 0.0, 0.0, 0.0, 0)
    scores = [rollout.reward for _, rollout in pairs]
    mean = Estimate.of(scores)
    main = [main_stratum(task, prompt) for prompt, _ in pairs]
    constant, over = None, None
    shared = balanced_mean(
        [group.rewards[0] for group in compared], [main_stratum(task, group.prompt) for group in compared]
    )
    if baselines is not None:
        constant = baselines.find(task.name, groups)
    if baselines is not None and constant is not None:
        over = _over(scores, constant, _fairest(task.name, groups, main, baselines) or constant, main)
    return TaskResult(
        mean.score,
        mean.se,
        statistics.fmean(r.score is not None and r.score.valid for _, r in pairs),
        statistics.fmean(r.length for _, r in pairs),
        len(pairs),
        dict(task.summarize(pairs)),
        groups,
        balanced_mean(scores, main),
        shared.score,
        shared.se,
        len(compared),
        constant,
        over,
        _strata(task, pairs, constant),
    )


def balanced_mean(values: Sequence[float], strata: Sequence[str]) -> Estimate:
    """Return the mean over strata of the mean within each, and its standard error; 0 over nothing.

    A stratum of one item says nothing of its own spread: it is taken to have the others' pooled standard deviation.

    Args:
        values: One an item.
        strata: The stratum of each item.
    """
    parts: dict[str, list[float]] = {}
    for value, stratum in zip(values, strata, strict=True):
        parts.setdefault(stratum, []).append(value)
    spread = math.sqrt(pooled_variance([*parts.values()]))
    estimates = [Estimate.of(part) if len(part) > 1 else Estimate(part[0], spread) for part in parts.values()]
    return Estimate.mean(estimates) if parts else NOTHING


def pooled_variance(parts: Sequence[Sequence[float]]) -> float:
    """Return the variance within parts, ``sum (n - 1) s^2 / sum (n - 1)``; that of all values where no part has two."""
    several = [part for part in parts if len(part) > 1]
    if not several:
        values = [value for part in parts for value in part]
        return statistics.variance(values) if len(values) > 1 else 0.0
    return sum((len(p) - 1) * statistics.variance(p) for p in several) / sum(len(p) - 1 for p in several)


def main_stratum(task: Task, prompt: Prompt) -> str:
    """Return the stratum (``key=value``) that a prompt counts in for the balanced score; empty where it has none."""
    return next((f"{key}={value}" for key, value in task.strata(prompt).items()), "")


def _fairest(name: str, groups: Sequence[Group], main: Sequence[str], baselines: Baselines) -> Constant | None:
    """The constant answer that is best where each stratum counts alike."""
    sizes = Counter(main)
    if len(set(sizes.values())) == 1:
        return None
    return baselines.find(name, groups, [1 / sizes[stratum] for stratum in main])


def _over(scores: Sequence[float], constant: Constant, fairest: Constant, main: Sequence[str]) -> OverConstant:
    gaps = [mine - its for mine, its in zip(scores, constant.scores, strict=True)]
    fair = [mine - its for mine, its in zip(scores, fairest.scores, strict=True)]
    return OverConstant(Estimate.of(gaps), balanced_mean(fair, main))


def _strata(task: Task, pairs: Sequence[tuple[Prompt, Rollout]], constant: Constant | None) -> dict[str, Stratum]:
    """Results by stratum, in alphabetical order within each of the task's keys."""
    places: dict[tuple[int, str], list[int]] = {}
    for i, (prompt, _) in enumerate(pairs):
        for rank, (key, value) in enumerate(task.strata(prompt).items()):
            places.setdefault((rank, f"{key}={value}"), []).append(i)
    return {
        name: _stratum(task, [pairs[i] for i in rows], rows, constant) for (_, name), rows in sorted(places.items())
    }


def _stratum(
    task: Task, pairs: Sequence[tuple[Prompt, Rollout]], rows: Sequence[int], constant: Constant | None
) -> Stratum:
    scores = [rollout.reward for _, rollout in pairs]
    metrics: dict[str, float] = {}
    for name, value in task.summarize(pairs).items():
        metrics.setdefault(held_out.ABSTAINED if name.startswith(f"{held_out.ABSTAINED}/") else name, value)
    metrics = {name: value for name, value in metrics.items() if name in MEANINGFUL}
    if constant is None:
        return Stratum(Estimate.of(scores), len(rows), metrics)
    theirs = [constant.scores[i] for i in rows]
    gaps = [mine - its for mine, its in zip(scores, theirs, strict=True)]
    return Stratum(Estimate.of(scores), len(rows), metrics, Estimate.of(theirs), Estimate.of(gaps))


def _answers(groups: Sequence[Group]) -> Counter[str]:
    """Answers of single turns, and how often each was given."""
    texts = (group.rollouts[0].text for group in groups if group.rollouts)
    return Counter(text[0] for text in texts if len(text) == 1 and len(text[0]) <= LONGEST)
