"""What the proofs look at: the users' preflight context, more rollouts sampled with it, and what proofs need beside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from levelhead.preflight import context
from levelhead.preflight.context import by_prompt, recorded
from levelhead.recipe.sampling import Sampling
from levelhead.records import Prompt, Rollout
from levelhead.rollout.draws import derive

ROLLOUTS = 8
"""Rollouts of a group, at most."""
DRAWN = 512
"""Completion tokens sampled, at most."""
PROBE_TOKENS = 12
"""Completion tokens of short draws."""


@dataclass(frozen=True, slots=True)
class Drawn(context.Sampled):
    """Rollouts sampled for the proofs.

    Attributes:
        k: Rollouts a group.
    """

    k: int = 1


class PreflightContext(context.Context):
    """The objects of a run, made as the run makes them, with seeded draws."""

    train_seconds: float | None = None
    """What the forward and backward passes of one update on the sampled groups took, once they have been made."""
    most_tokens = DRAWN

    @cached_property
    def drawn(self) -> Drawn:
        """Groups of rollouts of every task, through the collector that the run uses."""
        k = 1 if self.grpo is None else min(self.grpo.group_size, ROLLOUTS)
        prompts = [replace(p, token_ids=()) for task_prompts in self.prompts.values() for p in task_prompts]
        with recorded(self.generator) as turns:
            cost = self.collector().run(prompts, k, self.controls, derive(self.seed, "draw"))
        return Drawn(cost.groups, by_prompt(turns), None, cost, k)

    @property
    def rollouts(self) -> list[Rollout]:
        """All rollouts sampled."""
        return [rollout for group in self.drawn.groups for rollout in group.rollouts]

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
