"""From prompts to scored groups: the sampler draws, the task answers, turn by turn."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from levelhead.recipe.sampling import Sampling
from levelhead.records import Event, Group, Prompt, Rollout, Score, Turn
from levelhead.rollout.base import Sampler
from levelhead.rollout.draws import derive
from levelhead.tasks.base import Answer, Episode, EpisodeLostError, Eventful, SingleTurnTask, StepAware, Task
from levelhead.tasks.metering import JudgeUse, Metered, RewardTally, Tallied, merge, merge_tallies
from levelhead.text.codec import Codec
from levelhead.training.answers import answer_metrics
from levelhead.training.loop import Awaits, Strand

REDRAWS = 3
"""How often an episode is drawn again after its environment broke."""


@dataclass(slots=True)
class Collected:
    """Scored groups and what they cost.

    Attributes:
        groups: In the order of the prompts; a group may be smaller than asked where rollouts were dropped.
        sample_s: Seconds spent drawing tokens.
        score_s: Seconds spent scoring answers: rewards, judges.
        env_s: Seconds spent in environments: episodes of several turns.
        dropped: Rollouts without a score, left out.
        episodes: Rollouts that were scored.
        judges: What the judges of the tasks have done and cost, by task.
        tallies: What the reward functions of the tasks have logged and could not rate, by task.
        values: Metrics of the drawing itself.
        timings: The same, of what differs between two runs of one seed.
        temperature: At which a batch was drawn.
        behind: Updates that the trained weights are ahead of those that drew a batch.
        drew: Those weights, where somebody may want to go back to them and they are no longer the trained ones.
        prompts: All that a batch was drawn from, in order, those of groups that gave way to others included.
    """

    groups: list[Group]
    sample_s: float = 0.0
    score_s: float = 0.0
    env_s: float = 0.0
    dropped: int = 0
    episodes: int = 0
    judges: dict[str, JudgeUse] = field(default_factory=dict)
    tallies: dict[str, RewardTally] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    temperature: float = 1.0
    behind: int = 0
    drew: list[Tensor] | None = None
    prompts: list[Prompt] = field(default_factory=list)

    def add_cost(self, other: Collected) -> None:
        """Count what another collection cost as part of this one."""
        self.sample_s += other.sample_s
        self.score_s += other.score_s
        self.env_s += other.env_s
        self.dropped += other.dropped
        self.episodes += other.episodes
        self.judges = merge(self.judges, other.judges)
        self.tallies = merge_tallies(self.tallies, other.tallies)


class Collector:
    """Draws and scores rollouts of any task.

    Args:
        tasks: By name.
        codec: Of the policy.
        sampler: Draws completions.
        loop: Where coroutines are awaited.
    """

    def __init__(self, tasks: Mapping[str, Task], codec: Codec, sampler: Sampler, loop: Awaits) -> None:
        self._tasks = tasks
        self._codec = codec
        self._sampler = sampler
        self._loop = loop

    def apart(self, sampler: Sampler) -> tuple[Collector, Strand]:
        """A collector of the same tasks for another thread, with a sampler of its own, and how to call it off."""
        other, strand = copy.copy(self), Strand(self._loop)
        other._sampler, other._loop = sampler, strand
        return other, strand

    def events(self, step: int) -> list[Event]:
        """What has happened to the tasks since the last call, dated ``step``."""
        eventful = [task for task in self._tasks.values() if isinstance(task, Eventful)]
        return [event for task in eventful for event in task.drain_events(step)]

    def at_step(self, step: int, max_steps: int) -> None:
        """Tell the tasks that ``step`` of the stage's ``max_steps`` steps are done."""
        for task in self._tasks.values():
            if isinstance(task, StepAware):
                task.at_step(step, max_steps)

    def answers(self, groups: Sequence[Group]) -> dict[str, float]:
        """Whether answers depend on prompts, as metrics; see :func:`levelhead.training.answers.answer_metrics`."""
        return answer_metrics(self._tasks, groups)

    def render(self, prompt: Prompt) -> Prompt:
        """Return a prompt with its token ids."""
        return prompt if prompt.token_ids else prompt.with_tokens(self._codec.render(prompt.messages))

    def completion_ids(self, prompt: Prompt, text: str) -> tuple[int, ...]:
        """Return the tokens of an answer as a policy would write them, the stop token included."""
        return self._codec.demonstration(prompt.messages, text).completion_ids

    def collect(self, prompts: Sequence[Prompt], k: int, controls: Sampling, seed: int) -> Collected:
        """Draw and score k rollouts of each prompt.

        Raises:
            RewardError: A reward function misbehaved and the recipe does not drop such rollouts.
        """
        single = [i for i, prompt in enumerate(prompts) if isinstance(self._tasks[prompt.task], SingleTurnTask)]
        several = [i for i in range(len(prompts)) if i not in set(single)]
        done: dict[int, Group] = {}
        result = Collected([])
        self._use(), self._tallies()  # of anything before: preflight checks, an evaluation that broke off
        if single:
            groups = self._answers([self.render(prompts[i]) for i in single], k, controls, seed, result)
            done.update(zip(single, groups, strict=True))
        if several:
            groups = self._episodes([prompts[i] for i in several], k, controls, seed, result)
            done.update(zip(several, groups, strict=True))
        result.groups = [done[i] for i in range(len(prompts))]
        result.episodes = sum(len(group.rollouts) for group in result.groups)
        result.dropped = len(prompts) * k - result.episodes
        result.judges, result.tallies = self._use(), self._tallies()
        return result

    def _use(self) -> dict[str, JudgeUse]:
        """What judges have done since the last call, by task."""
        return {name: task.drain_use() for name, task in self._tasks.items() if isinstance(task, Metered)}

    def _tallies(self) -> dict[str, RewardTally]:
        """What reward functions have logged and could not rate since the last call, by task."""
        return {name: task.drain_tally() for name, task in self._tasks.items() if isinstance(task, Tallied)}

    def _answers(self, prompts: list[Prompt], k: int, controls: Sampling, seed: int, result: Collected) -> list[Group]:
        """Single-turn tasks: one sampler call, one scoring call a task."""
        start = time.perf_counter()
        drawn = self._sampler.sample(prompts, k, controls, seed)
        sampled = time.perf_counter()
        result.sample_s += sampled - start
        rollouts = [
            [self._rollout(prompt, [turn]) for turn in turns] for prompt, turns in zip(prompts, drawn, strict=True)
        ]
        scores: dict[tuple[int, int], Score | None] = {}
        for name in dict.fromkeys(prompt.task for prompt in prompts):
            task = self._tasks[name]
            assert isinstance(task, SingleTurnTask)  # noqa: S101 - collect() has told the kinds apart
            where = [(i, j) for i, prompt in enumerate(prompts) if prompt.task == name for j in range(k)]
            answers = [
                Answer(prompts[i], rollouts[i][j].text[0], rollouts[i][j].turns[0].completion_ids) for i, j in where
            ]
            with self._loop.giving_up():
                found = self._loop.run(task.score_batch(answers))
            scores.update(zip(where, found, strict=True))
        result.score_s += time.perf_counter() - sampled
        return [
            Group(
                prompt,
                tuple(r.scored(score) for j, r in enumerate(rollouts[i]) if (score := scores[i, j]) is not None),
            )
            for i, prompt in enumerate(prompts)
        ]

    def _episodes(self, prompts: list[Prompt], k: int, controls: Sampling, seed: int, result: Collected) -> list[Group]:
        """Multi-turn tasks: all live episodes take their turns together, one sampler call a round."""
        jobs = [_Job(prompt, index) for prompt in prompts for index in range(k)]
        live: list[_Job] = []
        # Of each prompt in turn: an environment has few copies ready of what the rollouts of one prompt all need.
        waiting = [jobs[i * k + index] for index in range(k) for i in range(len(prompts))]
        room = min((getattr(self._tasks[p.task], "concurrency", len(jobs)) for p in prompts), default=len(jobs))
        while live or waiting:
            while waiting and len(live) < room:
                live.append(waiting.pop(0))
            start = time.perf_counter()
            self._loop.run(self._observe(live))
            observed = time.perf_counter()
            ready = [job for job in live if job.context is not None]
            turns = self._sampler.sample([job.context for job in ready if job.context], 1, controls, seed)
            sampled = time.perf_counter()
            self._loop.run(self._act(ready, [turn for (turn,) in turns]))
            result.sample_s += sampled - observed
            result.env_s += observed - start + time.perf_counter() - sampled
            live = [job for job in live if not job.over]
        return [
            Group(
                prompt,
                tuple(
                    self._rollout(prompt, job.turns).scored(job.score)
                    for job in jobs[i * k : (i + 1) * k]
                    if job.score is not None
                ),
            )
            for i, prompt in enumerate(prompts)
        ]

    async def _observe(self, live: Sequence[_Job]) -> None:
        async def one(job: _Job) -> None:
            try:
                if job.episode is None:
                    job.episode = self._tasks[job.prompt.task].episode(job.prompt)
                messages = await job.episode.observe()
            except EpisodeLostError:
                await job.lost()
                return
            name = f"{job.prompt.id}#{job.index}.{job.redraws}@{len(job.turns)}"
            context = replace(job.prompt, id=name, messages=tuple(messages))
            job.context = context.with_tokens(self._codec.render(messages))

        await asyncio.gather(*(one(job) for job in live))

    async def _act(self, ready: Sequence[_Job], turns: Sequence[Turn]) -> None:
        async def one(job: _Job, turn: Turn) -> None:
            assert job.episode is not None  # noqa: S101 - a job is ready once it has been observed
            job.context = None
            job.turns.append(turn)
            try:
                step = await job.episode.act(self._codec.decode(turn.completion_ids))
            except EpisodeLostError:
                await job.lost()
                return
            if step.done:
                job.score, job.over = step.score, True
                await job.episode.close()

        await asyncio.gather(*(one(job, turn) for job, turn in zip(ready, turns, strict=True)))

    def _rollout(self, prompt: Prompt, turns: Sequence[Turn]) -> Rollout:
        texts = tuple(self._codec.decode(turn.completion_ids) for turn in turns)
        return Rollout(prompt.id, tuple(turns), None, self._sampler.version, texts)


@dataclass(slots=True)
class _Job:
    """One episode on its way."""

    prompt: Prompt
    index: int
    episode: Episode | None = None
    context: Prompt | None = None
    turns: list[Turn] = field(default_factory=list)
    score: Score | None = None
    over: bool = False
    redraws: int = 0

    async def lost(self) -> None:
        """Start over after the environment broke, a bounded number of times."""
        if self.episode is not None:
            await self.episode.close()
        self.episode, self.context, self.turns = None, None, []
        self.redraws += 1
        self.over = self.redraws > REDRAWS


def rollout_seed(seed: int, step: int) -> int:
    """The seed of one step's draws."""
    return derive(seed, "rollout", step)
