"""The ``workflow`` task: a problem in, a workflow out, which is run and rewarded."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

from levelhead.contrib.workflow import prompts, reward
from levelhead.contrib.workflow.census import census, structure
from levelhead.contrib.workflow.interpret import Executor, Job, Outcome
from levelhead.contrib.workflow.language import Extraction, Limits, Node, extract
from levelhead.contrib.workflow.problems import DOMAINS, Problem, epoch, generate, load
from levelhead.contrib.workflow.simulator import (
    SimulatedExecutor,
    bars,
    best_fixed_workflow,
    best_workflow,
    expected,
    varied_workflows,
)
from levelhead.metrics import held_out
from levelhead.recipe.tasks import Workflow
from levelhead.recipe.workflow import EndpointExecutor, ThreeLevelReward
from levelhead.records import ChatMessage, Event, Prompt, Rollout, Score
from levelhead.tasks.base import Answer, SingleTurnTask, Split
from levelhead.tasks.splits import limit_sides, split_by_group


class WorkflowTask(SingleTurnTask):
    """Problems for which the policy writes a workflow (see docs/workflow.md for the language).

    The score of a valid workflow is what its run led to, by the recipe's ``reward``; an answer that holds none is not
    run and gets ``reward.invalid``, less than any valid one.  Parts: ``correctness``, ``efficiency``, ``simplicity``,
    ``format``, ``repetition``, each in [0, 1].
    """

    def __init__(self, section: Workflow, executor: Executor | None = None) -> None:
        """Load the problems, or make them where the section names no file.

        Args:
            section: The recipe's section.
            executor: Runs the workflows; the one that the section describes unless given.

        Raises:
            InputError: A file is missing or empty, a row is malformed, or the executor cannot be set up.
        """
        self.name = section.title
        self._section = section
        self.limits = Limits(section.limits.depth, section.limits.loop, section.limits.calls)
        problems = load(section.path, section.dataset) if section.path is not None else generate(section.items)
        sides = split_by_group(
            problems,
            lambda one: " ".join(one.question.lower().split()),
            section.eval_fraction,
            stratum=lambda one: one.domain,
        )
        self._sides = limit_sides(sides, section.limit, section.eval_fraction, lambda problem: problem.id)
        self._problems = {problem.id: problem for side in self._sides.values() for problem in side}
        self._executor = executor or _make_executor(section)

    def problems(self, split: Split) -> Sequence[Problem]:
        """Return the problems of a side, in the order of the data."""
        return self._sides[split]

    def prompts(self, split: Split, seed: int) -> Iterator[Prompt]:
        """Yield one epoch of the split's problems, in the recipe's domain ratios, by the seed alone."""
        full = self._section.prompt == "full"
        for problem in epoch(self._sides[split], self._section.domains, seed, self.name, split):
            facts = {"domain": problem.domain, "difficulty": problem.difficulty}
            yield Prompt(problem.id, self.name, prompts.messages(problem.question, self.limits, full=full), facts=facts)

    @property
    def part_weights(self) -> Mapping[str, float] | None:
        """Return the weights of the recipe's ``reward``; ``None`` where it knows right and wrong alone."""
        section = self._section.reward
        if isinstance(section, ThreeLevelReward):
            return None
        return {name: float(getattr(section.weights, name)) for name in reward.PARTS}

    def oracle(self, prompt: Prompt) -> list[str] | None:
        """Return the workflow of the highest expected reward, by the problem's domain and difficulty.

        Expected in the simulator; for an ``endpoint`` it is the simulator's guess.
        """
        problem = self._problems[prompt.id]
        return [self._written(best_workflow(problem.domain, problem.difficulty, self._section.reward, self.limits))]

    async def demonstrate(self, prompt: Prompt) -> list[tuple[list[ChatMessage], str]]:
        """Return what supervised fine-tuning shows: the oracle, or one of a mix where the recipe says ``varied``.

        Which of the mix a problem gets depends on its id alone.
        """
        if self._section.demonstrations == "best":
            return [(list(prompt.messages), answer) for answer in self.oracle(prompt) or ()]
        text = random.Random(f"demonstration/{prompt.id}").choice(varied_workflows(self.limits))
        return [(list(prompt.messages), self._written(text))]

    def canonical(self, prompt: Prompt, text: str) -> str:
        """Return the workflow that an answer holds, printed in one way; where it holds none, the answer itself."""
        return _printed(text, self.limits, near_misses=self._section.near_misses) or super().canonical(prompt, text)

    @property
    def guesses(self) -> bool:
        """Whether the best workflow is not known: what an endpoint makes of one is not what the simulator does."""
        return not isinstance(self._executor, SimulatedExecutor)

    @property
    def rules(self) -> SingleTurnTask | None:
        """This task where workflows are simulated; ``None`` where running one costs calls to an endpoint."""
        return self if isinstance(self._executor, SimulatedExecutor) else None

    def strata(self, prompt: Prompt) -> Mapping[str, str]:
        """Return the problem's domain and difficulty."""
        return {"domain": str(prompt.facts["domain"]), "difficulty": str(prompt.facts["difficulty"])}

    def constants(self) -> Sequence[str]:
        """Return the workflow that is the best one for all training problems together, and those made as examples.

        Expected in the simulator; the best by class are the oracle's, which candidates hold anyway.
        """
        fixed = self.best_fixed_workflow("train")
        return [self._written(text) for text in dict.fromkeys((fixed, *varied_workflows(self.limits)))]

    def _written(self, workflow: str) -> str:
        return f"<workflow>{workflow}</workflow>" if self._section.prompt == "full" else workflow

    def score(self, prompt: Prompt, text: str) -> Score:
        """Score one answer; for many, :meth:`score_batch` runs them at once."""
        with ThreadPoolExecutor(1) as pool:  # a thread of its own, because the caller's may be in an event loop
            (score,) = pool.submit(asyncio.run, self._score_all([Answer(prompt, text)])).result()
        return score

    async def score_batch(self, answers: Sequence[Answer]) -> list[Score | None]:
        """Run all valid workflows and score all answers, in order.

        Equal answers to one prompt are told apart by their order, so that each is a draw of its own.

        Raises:
            RewardError: The executor gave up (its endpoint stays silent, or its budget is used up).
        """
        return list(await self._score_all(answers))

    async def _score_all(self, answers: Sequence[Answer]) -> list[Score]:
        extractions = [extract(answer.text, self.limits, near_misses=self._section.near_misses) for answer in answers]
        group = Counter(answer.prompt.id for answer in answers)
        alike = Counter((answer.prompt.id, one.text) for answer, one in zip(answers, extractions, strict=True))
        occurrences: Counter[tuple[str, str]] = Counter()
        cases: list[_Case] = []
        for answer, one in zip(answers, extractions, strict=True):
            name = answer.prompt.id
            share = (alike[name, one.text] - 1) / max(1, group[name] - 1)
            cases.append(_Case(self._problems[name], one, occurrences[name, one.text], share))
            occurrences[name, one.text] += 1
        outcomes = iter(await self._executor.execute([job for case in cases for job in case.jobs()]))
        return [
            self._fallback(case)
            if case.extraction.tree is None
            else self._valid(case, case.extraction.tree, next(outcomes))
            for case in cases
        ]

    def _valid(self, case: _Case, tree: Node, outcome: Outcome) -> Score:
        recipe, extraction = self._section.reward, case.extraction
        parts = reward.parts(recipe, reward.looks(extraction), outcome.level, outcome.tokens)
        info = {
            **case.place(),
            "workflow": extraction.text,
            "structure": structure(extraction.text),
            "tokens": outcome.tokens,
            "calls": outcome.calls,
            "repairs": list(extraction.repairs),
            "features": reward.features(tree, case.share_alike, outcome, recipe.token_budget),
        }
        if not isinstance(self._section.executor, EndpointExecutor):
            info["expected"] = expected(tree, case.problem.domain, case.problem.difficulty, recipe).reward
        if outcome.answer:
            info["answer"] = outcome.answer
        if outcome.note:
            info["note"] = outcome.note
        return Score(reward.total(recipe, parts), parts, valid=True, info=info)

    def _fallback(self, case: _Case) -> Score:
        info = {**case.place(), "workflow": None, "error": str(case.extraction.error)}
        info["features"] = dict.fromkeys(reward.FEATURES, 0.0)
        return Score(self._section.reward.invalid, dict.fromkeys(reward.PARTS, 0.0), valid=False, info=info)

    def summarize(self, results: Sequence[tuple[Prompt, Rollout]]) -> Mapping[str, float]:
        """Return the task's metrics, those of :func:`metrics_of`, and what the executor cost.

        Beside ``expected_reward`` stand the two bars that it is to be held against, over the same problems:
        ``expected_reward/best_fixed`` of the single best workflow and ``expected_reward/best_by_class`` of the oracle.
        """
        scores = [rollout.score for _, rollout in results if rollout.score is not None]
        values = {**super().summarize(results), **metrics_of(scores), **self._executor.metrics()}
        if held_out.EXPECTED_REWARD in values:
            problems = [self._problems[prompt.id] for prompt, _ in results]
            fixed, by_class = bars(problems, self._section.reward, self.limits)
            values |= {held_out.EXPECTED_BEST_FIXED: fixed, held_out.EXPECTED_BEST_BY_CLASS: by_class}
        return values

    def drain_events(self, step: int) -> list[Event]:
        """Return what happened to the executor's endpoint since the last call, dated ``step``."""
        events = [Event(step, "endpoint", "warning", message) for message in self._executor.drain_news()]
        return [*events, *super().drain_events(step)]

    def best_fixed_workflow(self, split: Split = "eval") -> str:
        """Return the single workflow that scores best on average over a side's problems, in the simulator."""
        return best_fixed_workflow(self._sides[split], self._section.reward, self.limits)


@dataclass(frozen=True, slots=True)
class _Case:
    problem: Problem
    extraction: Extraction
    sample: int
    share_alike: float

    def jobs(self) -> list[Job]:
        if self.extraction.tree is None:
            return []
        return [Job(self.extraction.tree, self.extraction.text, self.problem, self.sample)]

    def place(self) -> dict[str, object]:
        return {"domain": self.problem.domain, "difficulty": self.problem.difficulty}


@lru_cache(maxsize=8192)
def _printed(answer: str, limits: Limits, *, near_misses: bool) -> str:
    """The canonical text of an answer's workflow, empty where it holds none; a policy repeats itself."""
    return extract(answer, limits, near_misses=near_misses).text


def _make_executor(section: Workflow) -> Executor:
    if isinstance(section.executor, EndpointExecutor):
        # Only here: the simulator needs no HTTP client.
        from levelhead.contrib.workflow.endpoint import EndpointRunner

        return EndpointRunner(section.executor, section.sandbox)
    return SimulatedExecutor(section.executor.seed)


def metrics_of(scores: Sequence[Score]) -> Mapping[str, float]:
    """Return the metrics of some scored rollouts; one that has no rollouts to be taken over is absent.

    ``accuracy`` (share of right answers, fallbacks counted as wrong) and ``accuracy/DOMAIN``; ``fallback`` and
    ``normalised``, shares of the answers; over valid workflows ``tokens`` and ``calls`` (means), ``unique`` (share of
    different workflows), ``workflow_entropy`` (nats) and ``structure/CLASS``; ``expected_reward`` (mean of the exact
    expectations, fallbacks at their reward), in the simulator.
    """
    if not scores:
        return {}
    values = {held_out.ACCURACY: fmean(map(_right, scores))}
    for domain in DOMAINS:
        here = [_right(score) for score in scores if score.info["domain"] == domain]
        if here:
            values[held_out.ACCURACY_OF.of(domain)] = fmean(here)
    workflow_census = census(score.info["workflow"] for score in scores)
    valid = [score for score in scores if score.valid]
    values[held_out.FALLBACK] = workflow_census.fallback
    values[held_out.NORMALISED] = fmean(bool(score.info.get("repairs")) for score in scores)
    if all("expected" in score.info for score in valid):
        values[held_out.EXPECTED_REWARD] = fmean(
            score.info["expected"] if score.valid else score.total for score in scores
        )
    if valid:
        values[held_out.TOKENS] = fmean(score.info["tokens"] for score in valid)
        values[held_out.CALLS] = fmean(score.info["calls"] for score in valid)
        values[held_out.UNIQUE] = workflow_census.unique / workflow_census.valid
        values[held_out.WORKFLOW_ENTROPY] = workflow_census.entropy
        values |= {held_out.STRUCTURE.of(name): share for name, share in workflow_census.structures.items()}
    return values


def _right(score: Score) -> float:
    return float(score.parts["correctness"] == 1.0)
