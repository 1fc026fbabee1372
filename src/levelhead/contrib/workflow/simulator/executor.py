"""The ``simulated`` executor: one draw from the simulator's model for every operator that a workflow runs."""

from __future__ import annotations

import random
from collections.abc import Sequence

from levelhead.contrib.workflow.interpret import Executor, Job, Outcome, Path, Verdict, run
from levelhead.contrib.workflow.problems import Problem
from levelhead.contrib.workflow.reward import LEVELS
from levelhead.contrib.workflow.simulator import model
from levelhead.contrib.workflow.simulator.model import Chances, Quality, World


class SimulatedExecutor(Executor):
    """Draws outcomes that depend on the seed, the problem, the workflow and the sample, and on nothing else.

    The seed is the simulator's, not that of the run.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    async def execute(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Run all jobs and return their outcomes in order."""
        return [await self._one(job) for job in jobs]

    def world(self, problem: Problem) -> World:
        """Return what the simulator knows of a problem; whether it is tricky is drawn once and for all."""
        plain = World(problem.domain, problem.difficulty)
        draw = random.Random(f"{self._seed}/tricky/{problem.id}").random()
        return World(problem.domain, problem.difficulty, tricky=draw < model.TRICKY_SHARE[plain.rank])

    async def _one(self, job: Job) -> Outcome:
        backend = _Dice(self.world(job.problem), f"{self._seed}/{job.problem.id}/{job.text}/{job.sample}")
        quality = await run(job.tree, backend)
        return Outcome(LEVELS[quality], LEVELS[backend.first()], backend.tokens, backend.calls)


class _Dice:
    """A backend whose drafts are states of the model.  Each call has its own generator, named by its place."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._drafts: dict[Path, Quality] = {}
        self.tokens = 0
        self.calls = 0

    def first(self) -> Quality:
        return self._drafts[min(self._drafts)]

    async def draft(self, operator: str, path: Path, before: Quality | None) -> Quality:
        quality = _draw(self._spend(operator, path), model.draft(operator, self._world, before))
        self._drafts[path] = quality
        return quality

    async def judge(self, operator: str, path: Path, draft: Quality) -> Verdict:
        rng = self._spend(operator, path)
        return Verdict(rng.random() < model.notices(operator, self._world, draft), operator)

    async def revise(self, path: Path, draft: Quality, verdict: Verdict) -> Quality:
        rng = self._spend("Revise", path)
        return _draw(rng, model.revise(self._world, draft, verdict.by, verdict.fault))

    async def reduce(self, path: Path, draft: Quality) -> Quality:
        return _draw(self._spend("Format", path), model.reduce(self._world, draft))

    async def vote(self, operator: str, path: Path, drafts: Sequence[Quality]) -> Quality:
        return _draw(self._spend(operator, path), model.vote(operator, self._world, drafts))

    def _spend(self, operator: str, path: Path) -> random.Random:
        self.tokens += model.tokens(operator, self._world)
        self.calls += 1
        return random.Random(f"{self._name}/{'.'.join(map(str, path))}")


def _draw(rng: random.Random, chances: Chances) -> Quality:
    draw = rng.random()
    for chance, quality in chances:
        draw -= chance
        if draw < 0:
            return quality
    return chances[-1][1]
