"""What the checks look at: the run's own policy, tasks, sampler and collector, and a few rollouts sampled with them."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from levelhead.errors import RewardError
from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import Sampling
from levelhead.recipe.training import Grpo
from levelhead.records import Group, Prompt, Rollout, Turn
from levelhead.rollout.draws import derive
from levelhead.rollout.generators.base import Capabilities, Completion, Generator, Request
from levelhead.rollout.generators.make import make_local
from levelhead.tasks.base import SingleTurnTask, Task
from levelhead.text.codec import Codec
from levelhead.training.collect import Collector
from levelhead.training.collected import Collected
from levelhead.training.loop import EventLoop
from levelhead.training.prepare import Setup

LOOKED_AT = 64
"""Training prompts of a task among which the shortest and longest are chosen."""
GROUPS = 6
"""Groups sampled, over all tasks."""
ROLLOUTS = 8
"""Rollouts of a group, at most."""
DRAWN = 512
"""Completion tokens sampled, at most."""
PROBE_TOKENS = 12
"""Completion tokens of short draws."""


class Witness:
    """A generator that passes requests on and keeps what was sampled, so that what arrives elsewhere can be compared.

    Args:
        generator: Draws.
    """

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._calls = 0
        self._drawn: list[tuple[int, Request, Turn]] = []

    @property
    def version(self) -> int:
        """Version of the generator within."""
        return self._generator.version

    @property
    def capabilities(self) -> Capabilities:
        """Those of the generator within."""
        return self._generator.capabilities

    @property
    def turns(self) -> list[tuple[Prompt, list[Turn]]]:
        """What was sampled, prompt by prompt, in the order in which the requests stand."""
        drawn = sorted(self._drawn, key=lambda row: (row[0], row[1].place))
        groups: dict[tuple[str, str], tuple[Prompt, list[Turn]]] = {}
        for _, request, turn in drawn:
            prompt = request.prompt
            groups.setdefault((prompt.task, prompt.id), (prompt, []))[1].append(turn)
        return list(groups.values())

    async def generate(self, request: Request) -> Completion:
        """Sample, and keep what was sampled."""
        call = self._calls
        completion = await self._generator.generate(request)
        self._drawn.append((call, request, completion.turn))
        return completion

    def expect(self, count: int) -> None:
        """Hand on."""
        self._calls += count > 0
        self._generator.expect(count)

    def leave(self) -> None:
        """Hand on."""
        self._generator.leave()

    async def sync_weights(self) -> None:
        """Hand on."""
        await self._generator.sync_weights()

    async def rest(self) -> None:
        """Hand on."""
        await self._generator.rest()

    async def close(self) -> None:
        """Hand on."""
        await self._generator.close()


@dataclass(frozen=True, slots=True)
class Drawn:
    """Rollouts sampled for the checks.

    Attributes:
        groups: Of every task; without scores where a reward function misbehaved.
        turns: What the sampler generated, by its own account, prompt by prompt.
        error: What a reward function did.
        cost: Seconds by part.
        k: Rollouts a group.
    """

    groups: Sequence[Group]
    turns: Sequence[tuple[Prompt, list[Turn]]]
    error: RewardError | None
    cost: Collected
    k: int


class PreflightContext:
    """The objects of a run, made as the run makes them, with seeded draws.

    Args:
        setup: Recipe, tasks and policy.
        processes: Of the run.
    """

    def __init__(self, setup: Setup, processes: int = 1) -> None:
        self.setup, self.processes = setup, processes
        self.recipe = setup.recipe
        self.policy: Policy = setup.policy
        self.seed = derive(self.recipe.seed, "preflight")
        self.loop = EventLoop()
        self.generator = make_local(self.policy, self.loop.waiter)
        self.train_seconds: float | None = None
        """What the forward and backward passes of one update on the sampled groups took, once they have been made."""
        self.collector().at_step(0, self.recipe.grpo.steps if self.recipe.grpo is not None else 0)

    @property
    def codec(self) -> Codec:
        """The policy's codec."""
        return self.policy.codec

    @property
    def grpo(self) -> Grpo | None:
        """The recipe's reinforcement stage."""
        return self.recipe.grpo

    @cached_property
    def controls(self) -> Sampling:
        """The controls of the first step's rollouts, the length capped; evaluation's where nothing is sampled."""
        grpo = self.grpo
        controls: Sampling = self.recipe.eval.sampling if grpo is None else grpo.sampling.at(0, grpo.steps)
        most = min(controls.max_new_tokens, DRAWN)
        return controls.model_copy(
            update={"max_new_tokens": most, "min_new_tokens": min(controls.min_new_tokens, most - 1)}
        )

    @cached_property
    def prompts(self) -> dict[str, list[Prompt]]:
        """By task, the shortest, the longest and some prompts between, rendered; at least two where there are two."""
        share = max(2, GROUPS // len(self.setup.tasks))
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
    def drawn(self) -> Drawn:
        """Groups of rollouts of every task, through the collector that the run uses."""
        k = 1 if self.grpo is None else min(self.grpo.group_size, ROLLOUTS)
        prompts = [replace(p, token_ids=()) for task_prompts in self.prompts.values() for p in task_prompts]
        witness = Witness(self.generator)
        try:
            cost = self.collector(witness).run(prompts, k, self.controls, derive(self.seed, "draw"))
        except RewardError as error:
            groups = [
                Group(prompt, tuple(Rollout(prompt.id, (turn,), None, 0, ("",)) for turn in turns))
                for prompt, turns in witness.turns
            ]
            return Drawn(groups, witness.turns, error, Collected(groups), k)
        return Drawn(cost.groups, witness.turns, None, cost, k)

    @property
    def rollouts(self) -> list[Rollout]:
        """All rollouts sampled."""
        return [rollout for group in self.drawn.groups for rollout in group.rollouts]

    @property
    def turns(self) -> list[Turn]:
        """All turns sampled, as they arrive at the trainer."""
        return [turn for rollout in self.rollouts for turn in rollout.turns]

    @cached_property
    def contexts(self) -> list[Prompt]:
        """Prompts of clearly different lengths, as the sampler gets them; a very short one is among them.

        They are in no order of length: a sampler that sorts them must put its completions back where they belong.
        """
        prompt_by_context: dict[tuple[int, ...], Prompt] = {}
        for prompt, _ in self.drawn.turns:
            prompt_by_context.setdefault(prompt.token_ids, prompt)
        by_length = sorted(prompt_by_context.values(), key=lambda prompt: len(prompt.token_ids))
        step = max(1, len(by_length) // 4)
        messages = ({"role": "user", "content": "Hi"},)
        short = Prompt("preflight/short", by_length[0].task, messages, self.codec.render(messages))
        return [by_length[-1], short, *reversed(by_length[::step][:4])]

    def collector(self, generator: Generator | None = None) -> Collector:
        """Return the collector of a run, around a generator."""
        return Collector(self.setup.tasks, self.codec, generator or self.generator, self.loop)

    def is_single(self, task: Task) -> bool:
        """Whether a task's rollouts are one answer each."""
        return isinstance(task, SingleTurnTask)

    def greedy(self, **changes: Any) -> Sampling:
        """Return plain greedy controls for short draws."""
        return Sampling(temperature=0.0, max_new_tokens=PROBE_TOKENS).model_copy(update=changes)

    @contextlib.contextmanager
    def exact(self) -> Iterator[None]:
        """Compute in float32 inside where the weights allow it, so that rounding hides nothing."""
        before = self.policy.compute_dtype
        if self.policy.base.dtype == torch.float32:
            self.policy.compute_dtype = torch.float32
        try:
            yield
        finally:
            self.policy.compute_dtype = before

    def close(self) -> None:
        """Let go of environments and the event loop."""
        for task in self.setup.tasks.values():
            if isinstance(task, SingleTurnTask) and task.grader is not None:
                task.grader.asks = True
            if task.concurrency is not None:
                self.loop.run(task.close())
                task.drain_events(0)
        self.loop.run(self.generator.close())
        self.loop.close()


@contextlib.contextmanager
def untouched(policy: Policy) -> Iterator[None]:
    """Leave random generators, gradients and the policy's modes as they were."""
    states = (random.getstate(), np.random.get_state(), torch.get_rng_state())  # noqa: NPY002 - the global one is kept
    cuda = torch.cuda.get_rng_state_all() if policy.device.type == "cuda" else []
    training = policy.model.training
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002 - the global one is restored
        torch.set_rng_state(states[2])
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        policy.model.train(training)
        for parameter in policy.model.parameters():
            parameter.grad = None
