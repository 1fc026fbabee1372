"""A GRPO step and an SFT step by the run's own trainers, on known rollouts, with weights that stay."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from levelhead.policy.packing import MicroBatch
from levelhead.policy.policy import Policy, TokenStats
from levelhead.recipe.objective import Audit
from levelhead.recipe.sampling import Sampling
from levelhead.recipe.training import Grpo, Sft
from levelhead.records import Group, Prompt, Rollout, Score
from levelhead.training.collect import Collector
from levelhead.training.collected import Collected
from levelhead.training.grpo import GrpoTrainer
from levelhead.training.optim import Updater
from levelhead.training.prepare import make_objective
from levelhead.training.sft import SftTrainer
from levelhead.training.step_result import StepResult
from levelhead.training.stream import PromptStream
from oracle.context import PreflightContext

WHOLE = 1 << 20
"""Tokens of a micro-batch that no trial fills: a tree that is split computes shared states twice."""


class FrozenUpdater(Updater):
    """Does all that the updater does, except to change the weights; the gradient stays readable."""

    def step(self) -> None:
        """Count the step."""
        self.done += 1

    def clear(self) -> None:
        """Count the step."""
        self.done += 1


class Replay(Collector):
    """Hands out groups that have been sampled already."""

    def __init__(self, context: PreflightContext, groups: Sequence[Group]) -> None:
        super().__init__(context.setup.tasks, context.codec, context.generator, context.loop)
        self._groups = list(groups)

    async def collect(self, prompts: Sequence[Prompt], k: int, controls: Sampling, seed: int) -> Collected:
        """Return the groups, whatever was asked for."""
        return Collected(self._groups)


@dataclass(slots=True)
class Listener:
    """Which places of the last hidden layer, and which labels, a loss came from.

    Attributes:
        passes: (input ids, whether a gradient reached each place) of every forward pass, both (rows, length).
        labels: (micro-batch, whether a gradient reached the log-probability of each of its m labels) of every one
            that was scored.
        scores: (micro-batch, log-probabilities of its m labels) of the same.
    """

    passes: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    labels: list[tuple[MicroBatch, Tensor]] = field(default_factory=list)
    scores: list[tuple[MicroBatch, Tensor]] = field(default_factory=list)

    def rows(self) -> Iterator[tuple[list[int], list[bool]]]:
        """Yield token ids and, at each, whether its hidden state feeds the loss, row by row."""
        for ids, reached in self.passes:
            for row in range(len(ids)):
                yield ids[row].tolist(), reached[row].tolist()

    def completions(self) -> Iterator[tuple[list[int], list[bool]]]:
        """Yield the labels of each sequence and, at each, whether it counts in the loss."""
        for micro, reached in self.labels:
            lengths = list(micro.lengths)
            for ids, marks in zip(micro.targets.split(lengths), reached.split(lengths), strict=True):
                yield ids.tolist(), marks.tolist()


@contextlib.contextmanager
def listening(policy: Policy) -> Iterator[Listener]:
    """Record which of the last hidden states of every forward pass inside a gradient reaches.

    Each backward pass is looked at by itself: two that run through the same states may cancel in their sum.
    """
    listener = Listener()

    def note(module: Any, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        hidden = output.last_hidden_state
        if hidden.requires_grad:
            listener.passes.append((kwargs["input_ids"].cpu(), _reached(hidden)))

    score = policy.score

    def scored(batch: MicroBatch, temperature: float = 1.0) -> TokenStats:
        stats = score(batch, temperature)
        if stats.logp.requires_grad:
            listener.labels.append((batch, _reached(stats.logp)))
            listener.scores.append((batch, stats.logp.detach()))
        return stats

    handle = policy.base.get_decoder().register_forward_hook(note, with_kwargs=True)
    vars(policy)["score"] = scored
    try:
        yield listener
    finally:
        handle.remove()
        del vars(policy)["score"]


def _reached(values: Tensor) -> Tensor:
    """Return a mask over values (m,) or states (rows, length, d) that becomes true where a backward pass gets to."""
    reached = torch.zeros(values.shape[:2], dtype=torch.bool, device=values.device)

    def mark(grad: Tensor | None) -> None:
        if grad is not None:
            reached.logical_or_((grad != 0).any(-1) if grad.dim() > 1 else grad != 0)

    values.register_hook(mark)
    return reached


def contrasted(groups: Sequence[Group], flat: bool = False) -> list[Group]:
    """Return groups whose rewards are known: half 1 and half 0 by length, or all 0 where ``flat``.

    Shorter rollouts win, so that the direction of the update is one that no accident of order explains.
    """
    made = []
    for group in groups:
        order = sorted(range(len(group.rollouts)), key=lambda i: (group.rollouts[i].length, i))
        half = set(order[: len(order) // 2])
        rollouts = [_rewarded(r, 0.0 if flat or i not in half else 1.0) for i, r in enumerate(group.rollouts)]
        made.append(replace(group, rollouts=tuple(rollouts)))
    return made


def differing(group: Group) -> list[Rollout]:
    """Return a group's rollouts without repeats, shortest first; where all are alike, half of one and the whole.

    A policy that is sure of its answer gives the same one to all of a group.  Rewards for equal answers cancel, and a
    trial of such groups alone would measure nothing.
    """
    by_answer = {tuple(turn.completion_ids for turn in rollout.turns): rollout for rollout in group.rollouts}
    rollouts = sorted(by_answer.values(), key=lambda rollout: rollout.length)
    if len(rollouts) > 1 or len(group.rollouts) < 2:
        return rollouts
    half = _cut(rollouts[0], 0.5, None)
    return [half, *rollouts] if half.length < rollouts[0].length else list(group.rollouts)


def uneven(groups: Sequence[Group], stop_id: int) -> list[Group]:
    """Return groups whose rollouts are cut to different lengths, every other one with a stop token as its last.

    A policy that has yet to learn to stop fills its budget: where all are equally long and none has stopped, a mask
    that is wrong at the end of a completion is right by chance.
    """
    made = []
    for group in groups:
        count = len(group.rollouts)
        rollouts = [_cut(r, (i + 1) / count, stop_id if i % 2 else None) for i, r in enumerate(group.rollouts)]
        made.append(replace(group, rollouts=tuple(rollouts)))
    return made


def _cut(rollout: Rollout, share: float, stop_id: int | None) -> Rollout:
    """Return a rollout whose last turn is cut to a share of its tokens, and ends with a stop token where one is given.

    The stop token was not sampled, and its log-probabilities are 0: for trials that look at gradients alone.
    """
    *before, last = rollout.turns
    length = max(1, round(share * len(last.completion_ids)))
    end: tuple[int, ...] = () if stop_id is None else (stop_id,)
    zeros = (0.0,) * len(end)
    body_length = length - len(end)
    turn = replace(
        last,
        completion_ids=last.completion_ids[:body_length] + end,
        logprobs=last.logprobs[:body_length] + zeros,
        behaviour_logprobs=last.behaviour_logprobs[:body_length] + zeros,
        finish="length" if stop_id is None else "stop",
    )
    return replace(rollout, turns=(*before, turn))


def _rewarded(rollout: Rollout, reward: float) -> Rollout:
    """Return a rollout with another reward, its parts all equal to it."""
    score = rollout.score or Score(reward)
    return rollout.scored(replace(score, total=reward, parts=dict.fromkeys(score.parts, reward)))


@dataclass(frozen=True, slots=True)
class Trial:
    """What a GRPO step came to.

    Attributes:
        result: As the trainer returned it.
        listener: Where its loss came from.
        groups: What it trained on.
        seconds: Packing, forward, backward.
    """

    result: StepResult
    listener: Listener
    groups: Sequence[Group]
    seconds: float


def grpo_trial(
    context: PreflightContext,
    config: Grpo,
    groups: Sequence[Group],
    updater: Updater | None = None,
    *,
    audited: bool = False,
) -> Trial:
    """Do one GRPO step on the given groups; the gradient is left in the parameters, the weights are not changed."""
    clean(context.policy)
    changes = {
        "ahead": 0,
        "updates_per_batch": 1,
        "epochs": 1,
        "audit": Audit(first=int(audited), every=0, on_error="warn"),
        "dynamic_sampling": 0,  # sampling again would hand out the same groups twice
    }
    config = config.model_copy(update=changes)
    tasks = context.setup.tasks
    objective, _ = make_objective(context.recipe, config)
    trainer = GrpoTrainer(
        policy=context.policy,
        collector=Replay(context, groups),
        stream=PromptStream(list(tasks.values()), [context.setup.weights[name] for name in tasks], context.seed),
        objective=objective,
        updater=updater or FrozenUpdater(context.policy.parameters, config.optimizer, config.steps),
        config=config,
        seed=context.seed,
    )
    start = time.perf_counter()
    with listening(context.policy) as listener:
        result = trainer.step(1)
    return Trial(result, listener, groups, time.perf_counter() - start)


def sft_trial(context: PreflightContext, config: Sft) -> tuple[SftTrainer, Listener]:
    """Do one small SFT step; the gradient is left in the parameters, the weights are not changed."""
    clean(context.policy)
    small = config.model_copy(update={"batch_size": min(config.batch_size, 8), "tokens_per_microbatch": WHOLE})
    tasks = context.setup.tasks
    weights = [context.setup.weights[name] for name in tasks]
    stream = PromptStream(list(tasks.values()), weights, context.seed)
    updater = FrozenUpdater(context.policy.parameters, small.optimizer, small.steps)
    trainer = SftTrainer(context.policy, tasks, stream, updater, small, context.seed, context.loop)
    with listening(context.policy) as listener:
        trainer.step(1)
    return trainer, listener


def clean(policy: Policy) -> None:
    """Drop every gradient."""
    for parameter in policy.model.parameters():
        parameter.grad = None


def gradient(policy: Policy) -> list[Tensor | None]:
    """Return a copy of the gradient in the parameters."""
    return [None if p.grad is None else p.grad.detach().clone() for p in policy.parameters]


@contextlib.contextmanager
def stepped(policy: Policy, along: Sequence[Tensor | None], size: float) -> Iterator[None]:
    """Move the weights against a gradient by a fraction of their own norm inside, and restore them exactly."""
    moved = [(p, g) for p, g in zip(policy.parameters, along, strict=True) if g is not None]
    before = [p.detach().clone() for p, _ in moved]
    norm = torch.stack([g.float().norm() for _, g in moved]).norm() if moved else torch.ones(())
    weight = torch.stack([p.detach().float().norm() for p, _ in moved]).norm() if moved else torch.ones(())
    scale = float(size * weight.clamp(min=1.0) / norm.clamp(min=1e-30))
    try:
        with torch.no_grad():
            for parameter, grad in moved:
                parameter.sub_(scale * grad)
        yield
    finally:
        with torch.no_grad():
            for (parameter, _), old in zip(moved, before, strict=True):
                parameter.copy_(old)
