"""What checks look at: the run's own policy, tasks and collector, and a small set of rollouts that all share."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from levelhead.errors import RewardError
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.preflight.shared_passes import SharedPasses
from levelhead.recipe.sampling import Sampling
from levelhead.records import Group, Prompt, Rollout, Turn
from levelhead.rollout.draws import derive
from levelhead.rollout.generators.base import Completion, Generator, Request
from levelhead.rollout.generators.local import LocalGenerator
from levelhead.tasks.base import SingleTurnTask, Task
from levelhead.text.codec import Codec
from levelhead.training.collect import Collector
from levelhead.training.collected import Collected
from levelhead.training.loop import EventLoop
from levelhead.training.optim import Updater
from levelhead.training.prepare import Setup
from levelhead.training.sft import SftTrainer
from levelhead.training.stream import PromptStream

if TYPE_CHECKING:
    from levelhead.tasks.judges import JudgeGrader

LOOKED_AT = 64
"""Training prompts of a task among which the shortest and longest are chosen."""
PROMPTS = 6
"""Prompts whose rendering is looked at, over all tasks; at least two per task."""
ROLLOUTS = 8
"""Rollouts sampled, over all tasks; at least two per task."""
SAMPLED = 32
"""Tokens of a completion, at most."""


@contextlib.contextmanager
def recorded(generator: Generator) -> Iterator[list[tuple[Request, Turn]]]:
    """Note what a generator samples inside, to compare it with what arrives elsewhere."""
    sampled: list[tuple[Request, Turn]] = []
    generate = generator.generate

    async def noted(request: Request) -> Completion:
        completion = await generate(request)
        sampled.append((request, completion.turn))
        return completion

    vars(generator)["generate"] = noted
    try:
        yield sampled
    finally:
        del vars(generator)["generate"]


def by_prompt(sampled: Sequence[tuple[Request, Turn]]) -> list[tuple[Prompt, list[Turn]]]:
    """Return what was sampled prompt by prompt, in the order of the requests."""
    groups: dict[tuple[str, str], tuple[Prompt, list[Turn]]] = {}
    for request, turn in sorted(sampled, key=lambda row: row[0].place):
        prompt = request.prompt
        groups.setdefault((prompt.task, prompt.id), (prompt, []))[1].append(turn)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class Sampled:
    """The rollouts that all checks share.

    Attributes:
        groups: Of every task; without scores where a reward function misbehaved.
        turns: What the sampler generated, by its own account, prompt by prompt.
        error: What a reward function did.
        cost: Seconds by part.
    """

    groups: Sequence[Group]
    turns: Sequence[tuple[Prompt, list[Turn]]]
    error: RewardError | None
    cost: Collected


class Context:
    """The objects of a run, made as the run makes them, with seeded sampling.

    Args:
        setup: Recipe, tasks and policy.
        processes: Of the run.
    """

    most_tokens = SAMPLED

    def __init__(self, setup: Setup, processes: int = 1) -> None:
        self.setup, self.processes = setup, processes
        self.recipe = setup.recipe
        self.grpo = self.recipe.grpo
        self.policy: Policy = setup.policy
        self.seed = derive(self.recipe.seed, "preflight")
        self.loop = EventLoop()
        self.generator = LocalGenerator(self.policy, executor=self.loop.waiter)
        self.unscorable: set[str] = set()
        """Tasks whose rewards fail on answers of known worth: other checks leave their scores alone."""
        self.verdicts: dict[str, list[Any]] = {}
        """What judges made of answers of known worth, by task (:mod:`levelhead.preflight.checks.judges`)."""
        self.collector().at_step(0, 0 if self.grpo is None else self.grpo.steps)

    @property
    def codec(self) -> Codec:
        """The codec of the run's policy."""
        return self.policy.codec

    @cached_property
    def controls(self) -> Sampling:
        """The controls of the first step's rollouts, the length capped; evaluation's where nothing is sampled."""
        grpo = self.grpo
        controls: Sampling = self.recipe.eval.sampling if grpo is None else grpo.sampling.at(0, grpo.steps)
        most = min(controls.max_new_tokens, self.most_tokens)
        return controls.model_copy(
            update={"max_new_tokens": most, "min_new_tokens": min(controls.min_new_tokens, most - 1)}
        )

    @cached_property
    def prompts(self) -> dict[str, list[Prompt]]:
        """By task, the shortest, the longest and some prompts between, rendered; at least two where there are two."""
        share = max(2, PROMPTS // len(self.setup.tasks))
        prompts_by_task: dict[str, list[Prompt]] = {}
        for name, task in self.setup.tasks.items():
            seed = derive(self.seed, "prompts", name)
            prompts = [self.collector().render(p) for p in itertools.islice(task.prompts("train", seed), LOOKED_AT)]
            prompts.sort(key=lambda prompt: len(prompt.token_ids))
            count = min(share, len(prompts))
            step = (len(prompts) - 1) / max(count - 1, 1)
            prompts_by_task[name] = [prompts[round(i * step)] for i in range(count)]
        return prompts_by_task

    @cached_property
    def sampled(self) -> Sampled:
        """Groups of rollouts of every task, through the run's own collector: made once, shared by all checks."""
        per_task = max(1, 2 // len(self.setup.tasks))
        selection = [rows[:per_task] for rows in self.prompts.values()]
        groups = sum(map(len, selection))
        k = 1 if self.grpo is None else min(self.grpo.group_size, max(2, ROLLOUTS // max(groups, 1)))
        prompts = [replace(prompt, token_ids=()) for rows in selection for prompt in rows]
        seed = derive(self.seed, "draw")
        with recorded(self.generator) as turns:
            try:
                cost = self.collector().run(prompts, k, self.controls, seed)
            except RewardError as error:
                unscored = [
                    Group(prompt, tuple(Rollout(prompt.id, (turn,), None, 0, ("",)) for turn in rollouts))
                    for prompt, rollouts in by_prompt(turns)
                ]
                return Sampled(unscored, by_prompt(turns), error, Collected(unscored))
        return Sampled(cost.groups, by_prompt(turns), None, cost)

    @cached_property
    def passes(self) -> SharedPasses:
        """Forward and backward passes over the shared rollouts, each made when the first check asks for it."""
        turns = [turn for _, turns in self.sampled.turns for turn in turns]
        collector, temperature = self.collector(), self.controls.temperature or 1.0
        return SharedPasses(self.setup, self.sampled.groups, turns, self.loop, collector, temperature, self.seed)

    @property
    def rollouts(self) -> list[Rollout]:
        """The rollouts of all sampled groups."""
        return [rollout for group in self.sampled.groups for rollout in group.rollouts]

    @property
    def turns(self) -> list[Turn]:
        """All turns sampled, as they arrive at the trainer."""
        return [turn for rollout in self.rollouts for turn in rollout.turns]

    def collector(self) -> Collector:
        """Return the collector of a run."""
        return Collector(self.setup.tasks, self.codec, self.generator, self.loop)

    @property
    def scorable(self) -> dict[str, Task]:
        """The tasks whose rewards give numbers for answers of known worth."""
        return {name: task for name, task in self.setup.tasks.items() if name not in self.unscorable}

    @property
    def judged(self) -> list[tuple[SingleTurnTask, JudgeGrader]]:
        """The tasks whose answers judges grade, with these."""
        single = [task for task in self.setup.tasks.values() if isinstance(task, SingleTurnTask)]
        return [(task, cast("JudgeGrader", task.grader)) for task in single if task.grader is not None]

    def demonstrations(self, prompts: Sequence[Prompt]) -> list[TokenSequence]:
        """Return what the supervised stage would train on; nothing for prompts without a perfect answer.

        Raises:
            InputError: Not one demonstration succeeded.
        """
        tasks, sft = self.setup.tasks, self.recipe.sft
        answerable = [p for p in prompts if tasks[p.task].demonstrates or tasks[p.task].oracle(p)]
        if sft is None or not answerable:
            return []
        stream = PromptStream(list(tasks.values()), [1.0] * len(tasks), 0)
        updater = Updater(self.policy.parameters, sft.optimizer, sft.steps, self.policy.matrices)
        return SftTrainer(self.policy, tasks, stream, updater, sft, 0, self.loop).demonstrations(answerable)

    def close(self) -> None:
        """Let go of environments and the event loop."""
        for _, grader in self.judged:
            grader.asks = True
        for task in self.setup.tasks.values():
            if task.concurrency is not None:
                self.loop.run(task.close())
                task.drain_events(0)
        self.loop.run(self.generator.close())
        self.loop.close()


@contextlib.contextmanager
def same_random_numbers() -> Iterator[None]:
    """Leave the global random generators of the CPU as they were."""
    states = (random.getstate(), np.random.get_state(), torch.get_rng_state())  # noqa: NPY002 - the global one is kept
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002 - the global one is restored
        torch.set_rng_state(states[2])


@contextlib.contextmanager
def untouched(policy: Policy) -> Iterator[None]:
    """Leave random generators, gradients and the policy's modes as they were."""
    cuda = torch.cuda.get_rng_state_all() if policy.device.type == "cuda" else []
    training = policy.model.training
    try:
        with same_random_numbers():
            yield
    finally:
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        policy.model.train(training)
        policy.model.zero_grad()
