"""Supervised fine-tuning on the tasks' own demonstrations, loss on completions only."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from levelhead import metrics as metric
from levelhead.objective.terms import Term, scalar_loss
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.recipe.training import Sft
from levelhead.records import Prompt, StepRecord
from levelhead.rollout.draws import derive
from levelhead.tasks.base import Task
from levelhead.training.collected import Collected
from levelhead.training.demonstrations import Demonstrations, batch_of, none_succeeded
from levelhead.training.loop import EventLoop
from levelhead.training.optim import Updater, lost_gradient
from levelhead.training.ranks import Ranks
from levelhead.training.stateful import Stateful
from levelhead.training.step_result import StepResult
from levelhead.training.stream import Stream
from levelhead.training.watch import BatchWatch

PREFIX_GROUP_SIZE = 8
"""Demonstrations whose common beginning, the system prompt, is computed once."""


class SftTrainer:
    """Draws demonstrations and raises their likelihood.

    Args:
        policy: What is trained.
        tasks: By name.
        stream: Training prompts.
        updater: The optimizer.
        config: The ``sft`` section.
        seed: Of dropout, where there is any.
        loop: Where demonstrators act.
        ranks: The processes that share the work: each shows and learns its own part of a batch.
        watch: Shown the prompts of each step.
    """

    def __init__(
        self,
        policy: Policy,
        tasks: Mapping[str, Task],
        stream: Stream,
        updater: Updater,
        config: Sft,
        seed: int,
        loop: EventLoop,
        ranks: Ranks | None = None,
        watch: BatchWatch | None = None,
    ) -> None:
        self._ranks, self._watch = ranks or Ranks(), watch or BatchWatch()
        self.policy, self.tasks, self.stream = policy, tasks, stream
        self.updater, self.config, self.seed = updater, config, seed
        self._shown = Demonstrations(tasks, loop)

    @property
    def position(self) -> Stateful:
        """The position in the prompts, for a checkpoint."""
        return self.stream

    def step(self, step: int) -> StepResult:
        """Do step ``step``, counted from 1."""
        start = time.perf_counter()
        torch.manual_seed(derive(self.seed, "dropout", step))
        prompts = self.stream.take(self.config.batch_size)
        shown = batch_of(self._ranks, prompts, self._pairs)
        tokens, count = shown.tokens, shown.count
        total = entropy = 0.0
        with self.policy.training():
            for weight, micro in shown.micros(self.policy, self.config.tokens_per_microbatch):
                stats = self.policy.score(micro)
                value = stats.logp.sum() / tokens
                loss = scalar_loss([Term("log_likelihood", value, "maximize", weight)])
                loss.backward()
                total += float(loss.detach())
                entropy += weight * float(stats.entropy.detach().sum()) / tokens
        total, entropy = shown.finish(self.policy, total, entropy)
        rate = self.updater.learning_rate
        norm = self.updater.prepare()
        values = {
            metric.LOSS: total,
            metric.ENTROPY: entropy,
            metric.GRAD_NORM: norm,
            metric.LEARNING_RATE: rate,
            metric.NUM_TOKENS: float(tokens),
            metric.MEAN_LENGTH: tokens / count,
        }
        events = self._watch.sampled(step, Collected([], prompts=prompts))
        if math.isfinite(norm):
            self.updater.step()
            values |= self.updater.visible
        else:
            self.updater.finish()
            events.append(lost_gradient(step, values))
        seconds = {metric.STEP_TIME: time.perf_counter() - start}
        return StepResult(StepRecord(step, "sft", values, seconds), events=events)

    def upcoming(self) -> list[Prompt]:
        """The prompts of the next step."""
        return self.stream.peek(self.config.batch_size)

    def begins(self, step: int) -> dict[str, Any]:
        """What a step begins with besides weights, optimizer and prompts, as JSON, to tell whether a run goes on."""
        return {"seed": derive(self.seed, "dropout", step)}

    def state_dict(self) -> dict[str, Any]:
        """Nothing: a step depends on weights, optimizer, prompts and seed alone."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: :meth:`state_dict` is empty."""

    def demonstrations(self, prompts: Sequence[Prompt]) -> list[TokenSequence]:
        """Return one (context, completion) pair a turn of each prompt's demonstration.

        Raises:
            InputError: A task has no oracle, or not one demonstration succeeded.
        """
        pairs = self._pairs(prompts)
        if not pairs:
            raise none_succeeded(prompts)
        return pairs

    def _pairs(self, prompts: Sequence[Prompt]) -> list[TokenSequence]:
        pairs: list[TokenSequence] = []
        for prefix_group, (prompt, turns) in enumerate(zip(prompts, self._shown.show(prompts), strict=True)):
            for messages, answer in turns:
                pair = self.policy.codec.demonstration(messages, answer, prompt.chat)
                pairs.append(TokenSequence(pair.context_ids, pair.completion_ids, prefix_group // PREFIX_GROUP_SIZE))
        return pairs
