"""From prompts to scored groups: the generator samples, the task answers, turn by turn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from levelhead.recipe.sampling import Sampling
from levelhead.records import Event, Group, Prompt, Rollout, Score
from levelhead.rollout.draws import derive
from levelhead.rollout.generators.base import Completion, Generator, Remote, Request
from levelhead.tasks.base import Answer, Episode, EpisodeLostError, SeesTokens, SingleTurnTask, Task, has_one_turn
from levelhead.tasks.metering import JudgeUse, RewardTally
from levelhead.text.codec import Codec
from levelhead.training.answers import answer_metrics
from levelhead.training.collected import Collected, together
from levelhead.training.episodes import EpisodeClock, SharedPlaces
from levelhead.training.loop import EventLoop
from levelhead.training.ranks import Ranks
from levelhead.waiting import all_or_none

T = TypeVar("T")

RESTARTS = 3
"""How often an episode is sampled again after its environment broke."""


class Collector:
    """Samples and scores rollouts of any task; several processes share the prompts of a call.

    Args:
        tasks: By name.
        codec: Of the policy.
        generator: Samples completions.
        loop: Where coroutines are awaited.
        ranks: The processes; what :meth:`collect` returns is then that of all, and every process calls it alike.

    Attributes:
        generator: What samples the completions: the local sampler, or the servers.
        loop: The event loop of the run, on which its generator's and environments' coroutines are awaited.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task],
        codec: Codec,
        generator: Generator,
        loop: EventLoop,
        ranks: Ranks | None = None,
    ) -> None:
        self._tasks = tasks
        self._codec = codec
        self.generator = generator
        self.loop = loop
        self._ranks = ranks or Ranks()
        self._shared: SharedPlaces | None = None

    @property
    def own(self) -> Collector:
        """The collector of this process alone."""
        if self._ranks.alone:
            return self
        return Collector(self._tasks, self._codec, self.generator, self.loop)

    def task(self, name: str) -> Task:
        """The task of that name."""
        return self._tasks[name]

    def use(self) -> Mapping[str, float]:
        """Metrics of the servers that sample, if any do, since the last call."""
        return self.generator.drain_use() if isinstance(self.generator, Remote) else {}

    def of_group(self, generator: Generator, shared: SharedPlaces) -> Collector:
        """Return a collector of one group beside others, with a generator and places of its own.

        Its episodes take a quarter of the places of their task: a group that is held up leaves room for others, and
        what a place holds ready, such as a web page, serves several episodes of the group in turn.  How many rollouts
        are sampled together follows from that, and not from who else is under way: timing changes nothing.  What
        judges have done is left with their tasks; see :meth:`drain_use`.
        """
        collector = Collector(self._tasks, self._codec, generator, self.loop)
        collector._shared = shared
        return collector

    def events(self, step: int) -> list[Event]:
        """What has happened to the tasks since the last call, dated ``step``."""
        events = [event for task in self._tasks.values() for event in task.drain_events(step)]
        return events + (self.generator.drain_events(step) if isinstance(self.generator, Remote) else [])

    def at_step(self, step: int, max_steps: int) -> None:
        """Tell the tasks that ``step`` of the stage's ``max_steps`` steps are done."""
        for task in self._tasks.values():
            task.at_step(step, max_steps)

    def answers(self, groups: Sequence[Group]) -> dict[str, float]:
        """Whether answers depend on prompts, as metrics; see :func:`levelhead.training.answers.answer_metrics`."""
        return answer_metrics(self._tasks, groups)

    def render(self, prompt: Prompt) -> Prompt:
        """Return a prompt with its token ids."""
        return prompt if prompt.token_ids else prompt.with_tokens(self._codec.render(prompt.messages, prompt.chat))

    def completion_ids(self, prompt: Prompt, text: str) -> tuple[int, ...]:
        """Return the tokens of an answer as a policy would write them, the stop token included."""
        return self._codec.demonstration(prompt.messages, text, prompt.chat).completion_ids

    def run(self, prompts: Sequence[Prompt], k: int, controls: Sampling, seed: int) -> Collected:
        """Wait for :meth:`collect`, in a thread that is not the event loop's."""
        return self.loop.run(self.collect(prompts, k, controls, seed))

    async def collect(self, prompts: Sequence[Prompt], k: int, controls: Sampling, seed: int) -> Collected:
        """Sample and score k rollouts of each prompt, with the policy's newest weights.

        A completion is sampled by its prompt and index, in whichever process that happens.

        Raises:
            RewardError: A reward function misbehaved and the recipe does not drop such rollouts.
        """
        if self._ranks.alone:
            return await self._collect(prompts, k, controls, seed)
        ranks = self._ranks
        parts = await ranks.agreed_in_loop(self._collect(prompts[ranks.rank :: ranks.count], k, controls, seed))
        groups = [parts[i % ranks.count].groups[i // ranks.count] for i in range(len(prompts))]
        return together(parts, groups)

    async def _collect(self, prompts: Sequence[Prompt], k: int, controls: Sampling, seed: int) -> Collected:
        await self.generator.sync_weights()
        single = [i for i, prompt in enumerate(prompts) if has_one_turn(self._tasks[prompt.task])]
        several = [i for i in range(len(prompts)) if i not in set(single)]
        done: dict[int, Group] = {}
        result = Collected([])
        if self._shared is None:
            self.drain_use()  # of anything before: preflight checks, an evaluation that broke off
        self._tallies()
        if single:
            groups = await self._answers([self.render(prompts[i]) for i in single], k, controls, seed, result)
            done.update(zip(single, groups, strict=True))
        if several:
            groups = await self._episodes([prompts[i] for i in several], k, controls, seed, result)
            done.update(zip(several, groups, strict=True))
        result.groups = [done[i] for i in range(len(prompts))]
        result.episodes = sum(len(group.rollouts) for group in result.groups)
        result.dropped = len(prompts) * k - result.episodes
        result.judges, result.tallies = {} if self._shared else self.drain_use(), self._tallies()
        return result

    def drain_use(self) -> dict[str, JudgeUse]:
        """What judges have done since the last call, by task."""
        return {name: use for name, task in self._tasks.items() if (use := task.drain_use()) is not None}

    def _tallies(self) -> dict[str, RewardTally]:
        """What reward functions have logged and could not rate since the last call, by task."""
        return {name: tally for name, task in self._tasks.items() if (tally := task.drain_tally()) is not None}

    async def _answers(
        self, prompts: list[Prompt], k: int, controls: Sampling, seed: int, result: Collected
    ) -> list[Group]:
        """Single-turn tasks: all completions are asked for at once, and scored in one call a task."""
        start = time.perf_counter()
        completions = await self._draw(prompts, k, controls, seed)
        drawn = time.perf_counter()
        result.sample_s += drawn - start
        rollouts = [
            [self._rollout(prompt, [completion]) for completion in group]
            for prompt, group in zip(prompts, completions, strict=True)
        ]
        scores: dict[tuple[int, int], Score | None] = {}
        for name in dict.fromkeys(prompt.task for prompt in prompts):
            task = self._tasks[name]
            assert isinstance(task, SingleTurnTask)  # noqa: S101 - collect() has told the kinds apart
            where = [(i, j) for i, prompt in enumerate(prompts) if prompt.task == name for j in range(k)]
            answers = [
                Answer(prompts[i], rollouts[i][j].text[0], rollouts[i][j].turns[0].completion_ids) for i, j in where
            ]
            if self._shared is not None:
                task.at_step(self._shared.done, self._shared.steps)
            with self.loop.giving_up():
                scores.update(zip(where, await task.rewarded(answers), strict=True))
        result.score_s += time.perf_counter() - drawn
        result.unscored += sum(score is None for score in scores.values())
        return [
            Group(
                prompt,
                tuple(r.scored(score) for j, r in enumerate(rollouts[i]) if (score := scores[i, j]) is not None),
            )
            for i, prompt in enumerate(prompts)
        ]

    async def _draw(self, prompts: Sequence[Prompt], k: int, controls: Sampling, seed: int) -> list[list[Completion]]:
        """Return k completions of each rendered prompt."""
        requests = [
            Request(prompt, index, controls, seed, i * k + index)
            for i, prompt in enumerate(prompts)
            for index in range(k)
        ]
        self.generator.expect(len(requests))
        try:
            completions = await all_or_none(self.generator.generate(request) for request in requests)
        finally:
            self.generator.expect(0)
        return [completions[i * k : (i + 1) * k] for i in range(len(prompts))]

    async def _episodes(
        self, prompts: list[Prompt], k: int, controls: Sampling, seed: int, result: Collected
    ) -> list[Group]:
        """Multi-turn tasks: as many episodes side by side as the environments allow, each at its own pace."""
        episodes = [[_Rolling(prompt, index) for index in range(k)] for prompt in prompts]
        # Of each prompt in turn: an environment has few copies ready of what the rollouts of one prompt all need.
        waiting = deque(members[index] for index in range(k) for members in episodes)
        for place, rolling in enumerate(waiting):
            rolling.place = place
        room = min((self._tasks[p.task].concurrency or len(waiting) for p in prompts), default=0)
        if self._shared is not None:
            room = await self._shared.take(self._tasks[prompts[0].task], len(waiting))
        room = min(room, len(waiting))
        clock = EpisodeClock(room, together=not isinstance(self.generator, Remote))

        async def play() -> None:
            while waiting:
                await clock.turn_over()
                if waiting:
                    await self._play(waiting.popleft(), controls, seed, clock)
            clock.leave()
            self.generator.leave()
            if self._shared is not None:
                self._shared.leave(1)

        start = time.perf_counter()
        self.generator.expect(room)
        try:
            await all_or_none(play() for _ in range(room))
        finally:
            self.generator.expect(0)
            if self._shared is not None:
                self._shared.leave()
        result.sample_s += clock.seconds
        result.env_s += time.perf_counter() - start - clock.seconds
        result.unscored += sum(rolling.score is None for members in episodes for rolling in members)
        return [
            Group(
                prompt,
                tuple(
                    replace(self._rollout(prompt, rolling.completions), turn_rewards=rolling.turn_rewards).scored(
                        rolling.score
                    )
                    for rolling in members
                    if rolling.score is not None
                ),
            )
            for prompt, members in zip(prompts, episodes, strict=True)
        ]

    async def _play(self, rolling: _Rolling, controls: Sampling, seed: int, clock: EpisodeClock) -> None:
        """Play one episode to its end, from the start again where its environment breaks."""
        while not rolling.over:
            try:
                if rolling.episode is None:
                    rolling.episode = self._tasks[rolling.prompt.task].episode(rolling.prompt)
                messages = await rolling.episode.observe()
                context = replace(rolling.prompt, id=rolling.name, messages=tuple(messages))
                context = context.with_tokens(self._codec.render(messages, context.chat))
                with clock:
                    completion = await self.generator.generate(Request(context, 0, controls, seed, rolling.place))
                rolling.completions.append(completion)
                if isinstance(rolling.episode, SeesTokens):
                    rolling.episode.completion_ids = completion.turn.completion_ids
                step = await rolling.episode.act(self._codec.decode(completion.turn.completion_ids, context.chat))
                rolling.rewards.append(step.reward)
            except EpisodeLostError:
                await rolling.lost()
                continue
            if step.done:
                rolling.score, rolling.over = step.score, True
                await rolling.episode.close()

    def _rollout(self, prompt: Prompt, completions: Sequence[Completion]) -> Rollout:
        turns = tuple(completion.turn for completion in completions)
        texts = tuple(self._codec.decode(turn.completion_ids, prompt.chat) for turn in turns)
        oldest = min(completion.versions[0] for completion in completions)
        return Rollout(prompt.id, turns, None, oldest, texts)


@dataclass(slots=True)
class _Rolling:
    """One episode on its way."""

    prompt: Prompt
    index: int
    place: int = 0
    episode: Episode | None = None
    completions: list[Completion] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    score: Score | None = None
    over: bool = False
    restarts: int = 0

    @property
    def name(self) -> str:
        """What the random numbers of its next turn are named by."""
        return f"{self.prompt.id}#{self.index}.{self.restarts}@{len(self.completions)}"

    @property
    def turn_rewards(self) -> tuple[float, ...]:
        """What each turn earned; empty where the environment has said so of none."""
        rewarded = any(reward is not None for reward in self.rewards)
        return tuple(reward or 0.0 for reward in self.rewards) if rewarded else ()

    async def lost(self) -> None:
        """Start over after the environment broke, a bounded number of times."""
        if self.episode is not None:
            await self.episode.close()
        self.episode, self.completions, self.rewards = None, [], []
        self.restarts += 1
        self.over = self.restarts > RESTARTS


def rollout_seed(seed: int, step: int) -> int:
    """The seed of one step's draws."""
    return derive(seed, "rollout", step)
