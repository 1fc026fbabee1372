"""A GRPO step and an SFT step by the run's own trainers, on known rollouts, with weights that stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from levelhead.objective.terms import Term
from levelhead.policy.packing import MicroBatch, TokenSequence
from levelhead.policy.policy import REFERENCE_ADAPTER, Policy, TokenStats
from levelhead.preflight.listening import Listener, listening
from levelhead.recipe.objective import Advantage, Audit, Kl, Merge
from levelhead.recipe.sampling import Sampling
from levelhead.recipe.training import Grpo, Sft
from levelhead.records import Group, Prompt, Rollout, Score
from levelhead.training.batch import Sample
from levelhead.training.collect import Collector
from levelhead.training.collected import Collected
from levelhead.training.grpo import GrpoTrainer
from levelhead.training.loop import EventLoop
from levelhead.training.objective import Objective
from levelhead.training.optim import Updater
from levelhead.training.prepare import Setup, make_objective
from levelhead.training.sft import SftTrainer
from levelhead.training.step_result import StepResult
from levelhead.training.stream import PromptStream

GAP = 0.3
"""Nats by which the reference lies above and below the policy, token by token, in a trial: at step 0 both are equal,
and a KL between equals has no gradient to look at."""
WHOLE = 1 << 20
"""Tokens of a micro-batch that no trial fills: a tree that is split computes shared states twice."""
DEMONSTRATIONS = 4
"""Demonstrations of the trial step of the supervised stage."""


class FrozenUpdater(Updater):
    """Does all that the updater does, except to change the weights; the gradient stays readable."""

    def step(self) -> None:
        """Count the step and change no weight."""
        self.done += 1

    def finish(self) -> None:
        """Count the step and drop nothing."""
        self.done += 1


class Replay(Collector):
    """Hands out groups that have been sampled already.

    Args:
        collector: Whose tasks and generator it has.
        groups: What it hands out.
    """

    def __init__(self, collector: Collector, groups: Sequence[Group]) -> None:
        vars(self).update(vars(collector))
        self._groups = list(groups)

    async def collect(self, prompts: Sequence[Prompt], k: int, controls: Sampling, seed: int) -> Collected:  # noqa: ARG002
        """Return the groups, whatever was asked for."""
        return Collected(self._groups)


@dataclass(slots=True)
class TermSlopes:
    """The terms of one micro-batch, and how each depends on what the policy says of the tokens.

    Attributes:
        task: Whose.
        samples: In the order of the micro-batch's sequences.
        lengths: Tokens of each.
        terms: As the objective built them.
        natural: (2 m,) gradient of each term's natural value along the m log-probabilities and m entropies, (m,) where
            entropies have none; ``None`` where none leads to them.
        stats: What the policy said, with gradient.
    """

    task: str
    samples: list[Sample]
    lengths: tuple[int, ...]
    terms: list[Term]
    natural: list[Tensor | None]
    stats: TokenStats


class RecordingObjective(Objective):
    """The run's objective, which notes the slopes of its terms along the tokens, and shifts what the reference says.

    Args:
        objective: The run's.
        listener: Of the policy's passes.
    """

    def __init__(self, objective: Objective, listener: Listener) -> None:
        vars(self).update(vars(objective))
        self.listener = listener
        self.micro_batches: list[TermSlopes] = []

    def terms(self, policy: Policy, micro: MicroBatch, task: str, plan: Any, metrics: Any = None) -> list[Term]:
        """Build the terms, and note their slopes."""
        original = policy.reference_logp

        def shifted(batch: MicroBatch, temperature: float = 1.0) -> Tensor:
            logp = original(batch, temperature)
            return logp - GAP * alternating(logp)

        vars(policy)["reference_logp"] = shifted
        try:
            terms = super().terms(policy, micro, task, plan, metrics)
        finally:
            del vars(policy)["reference_logp"]
        stats = self.listener.stats[-1][0]
        samples = [plan.samples[task][i] for i in micro.indices]
        self.listener.muted = True
        natural = [_natural(term, stats) for term in terms]
        self.listener.muted = False
        self.micro_batches.append(TermSlopes(task, samples, tuple(micro.lengths), terms, natural, stats))
        return terms


def alternating(values: Tensor) -> Tensor:
    """Return 1, -1, 1, -1, ... in the shape of (m,) values."""
    return 1.0 - 2.0 * (torch.arange(len(values), device=values.device) % 2)


def _natural(term: Term, stats: TokenStats) -> Tensor | None:
    if not term.value.requires_grad:
        return None
    inputs = [values for values in (stats.logp, stats.entropy) if values.requires_grad]
    parts: Sequence[Tensor | None] = torch.autograd.grad(term.value, inputs, retain_graph=True, allow_unused=True)
    if all(part is None for part in parts):
        return None
    return torch.cat([torch.zeros_like(x) if part is None else part for x, part in zip(inputs, parts, strict=True)])


@dataclass(frozen=True, slots=True)
class Trial:
    """One step of the trainer whose weights stayed.

    Attributes:
        result: As the trainer returned it.
        listener: Where its loss came from.
        objective: What its terms were.
        groups: What it trained on.
    """

    result: StepResult
    listener: Listener
    objective: RecordingObjective
    groups: Sequence[Group]


def bare(grpo: Grpo) -> Grpo:
    """Return a GRPO section whose one step trains on every completion token by reward, KL and entropy alone."""
    changes: dict[str, Any] = {
        "ahead": 0,
        "updates_per_batch": 1,
        "epochs": 1,
        "audit": Audit(first=0, every=0, on_error="warn"),
        "dynamic_sampling": 0,  # sampling again would hand out the same groups twice
        "loss": grpo.loss.model_copy(update={"top_entropy": None, "importance": None}),
        "mask_truncated": False,
        "tokens_per_microbatch": WHOLE,
        "merge": Merge(),
    }
    if grpo.kl.where != "loss":
        changes["kl"] = Kl()
    estimator = grpo.advantage.make()
    if not estimator.aims_at_mean or "entropies_gkt" in estimator.needs:
        changes["advantage"] = Advantage()
    return grpo.model_copy(update=changes)


def grpo_trial(setup: Setup, collector: Collector, groups: Sequence[Group], seed: int) -> Trial:
    """Do one GRPO step on the given groups; the gradient is left in the parameters, the weights are not changed."""
    assert setup.recipe.grpo is not None  # noqa: S101 - asked for with a grpo stage only
    setup.policy.model.zero_grad()
    config = bare(setup.recipe.grpo)
    config = config.model_copy(update={"batch_size": len(groups) * config.group_size})
    objective, _ = make_objective(setup.recipe, config)
    if objective.coefficients.needs_reference:
        setup.policy.keep_reference(trained=setup.recipe.sft is not None)
    tasks = setup.tasks
    try:
        with listening(setup.policy) as listener:
            recording = RecordingObjective(objective, listener)
            trainer = GrpoTrainer(
                policy=setup.policy,
                collector=Replay(collector, groups),
                stream=PromptStream(list(tasks.values()), [setup.weights[name] for name in tasks], seed),
                objective=recording,
                updater=FrozenUpdater(setup.policy.parameters, config.optimizer, config.steps),
                config=config,
                seed=seed,
            )
            result = trainer.step(1)
    finally:
        setup.policy.drop_reference()
        if setup.policy.lora and REFERENCE_ADAPTER in setup.policy.model.peft_config:
            setup.policy.model.delete_adapter(REFERENCE_ADAPTER)
    return Trial(result, listener, recording, groups)


def sft_trial(setup: Setup, loop: EventLoop, seed: int) -> tuple[list[TokenSequence], Listener]:
    """Do one small SFT step, its backward pass cut at the last hidden states; return its demonstrations as well.

    Raises:
        InputError: A task has no oracle, or not one demonstration succeeded.
    """
    sft = setup.recipe.sft
    assert sft is not None  # noqa: S101 - asked for with an sft stage only
    setup.policy.model.zero_grad()
    changes = {"batch_size": min(sft.batch_size, DEMONSTRATIONS), "tokens_per_microbatch": WHOLE}
    small: Sft = sft.model_copy(update=changes)
    weights = [setup.weights[name] for name in setup.tasks]

    def trainer() -> SftTrainer:
        stream = PromptStream(list(setup.tasks.values()), weights, seed)
        updater = FrozenUpdater(setup.policy.parameters, small.optimizer, small.steps)
        return SftTrainer(setup.policy, setup.tasks, stream, updater, small, seed, loop)

    with listening(setup.policy, cut=True) as listener:
        trainer().step(1)
    again = trainer()
    setup.policy.model.zero_grad()
    return again.demonstrations(again.stream.take(small.batch_size)), listener


def contrasted(groups: Sequence[Group]) -> list[Group]:
    """Return groups whose rewards are known: half 1 and half 0 by length.

    Shorter rollouts win in the first group, longer ones in the next, and so on: no accident of order explains the
    direction of the update, and rewards that went to other rollouts would ask for another one.
    """
    rewarded = []
    for index, group in enumerate(groups):
        order = sorted(range(len(group.rollouts)), key=lambda i: (group.rollouts[i].length, i), reverse=index % 2 == 1)
        half = set(order[: len(order) // 2])
        rollouts = [rewarded_with(r, 1.0 if i in half else 0.0) for i, r in enumerate(group.rollouts)]
        rewarded.append(replace(group, rollouts=tuple(rollouts)))
    return rewarded


def rewarded_with(rollout: Rollout, reward: float) -> Rollout:
    """Return a rollout with another reward, its parts all equal to it."""
    score = rollout.score or Score(reward)
    return rollout.scored(replace(score, total=reward, parts=dict.fromkeys(score.parts, reward)))


def uneven(groups: Sequence[Group], stop_id: int, most: int) -> list[Group]:
    """Return groups whose rollouts are cut to different lengths, every other one with a stop token as its last.

    A policy that has yet to learn to stop fills its budget: where all are equally long and none has stopped, a mask
    that is wrong at the end of a completion is right by chance.

    Args:
        groups: As they were sampled.
        stop_id: What is put at the end; nobody sampled it, and its log-probabilities are 0.
        most: Tokens of the longest, at most.
    """
    cut = []
    for group in groups:
        count = len(group.rollouts)
        rollouts = [cut_to(r, (i + 1) / count, stop_id if i % 2 else None, most) for i, r in enumerate(group.rollouts)]
        cut.append(replace(group, rollouts=tuple(rollouts)))
    return cut


def cut_to(rollout: Rollout, share: float, stop_id: int | None, most: int) -> Rollout:
    """Return a rollout whose last turn is cut to a share of its tokens; ``stop_id`` is its last where one is given."""
    *before, last = rollout.turns
    length = max(1, round(share * min(most, len(last.completion_ids))))
    end: tuple[int, ...] = () if stop_id is None else (stop_id,)
    zeros = (0.0,) * len(end)
    body = length - len(end)
    turn = replace(
        last,
        completion_ids=last.completion_ids[:body] + end,
        logprobs=last.logprobs[:body] + zeros,
        behaviour_logprobs=last.behaviour_logprobs[:body] + zeros,
        finish="length" if stop_id is None else "stop",
    )
    return replace(rollout, turns=(*before, turn))
