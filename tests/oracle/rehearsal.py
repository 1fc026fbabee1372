"""The run's own trainer on made-up rollouts, and what arrives at every token's log-probability on the way back.

The recipe's trainer does two batches of two mini-batches, the first one in two passes.  In front of it the policy's
log-probabilities are moved by known amounts from update to update, as if the weights had been: the gradient that
reaches them is the slope of the loss, and the model below computes its own backward pass from it.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levelhead.policy.packing import MicroBatch, TokenSequence
from levelhead.policy.policy import Policy, TokenStats
from levelhead.policy.rounding import exact_policy, why_not_exact
from levelhead.preflight.trial import WHOLE, FrozenUpdater, Replay
from levelhead.recipe import Recipe
from levelhead.recipe.objective import Audit, Shaping
from levelhead.recipe.sampling import Sampling
from levelhead.recipe.training import Grpo
from levelhead.records import Group, Prompt
from levelhead.training.coefficients import facts_of
from levelhead.training.collected import Collected
from levelhead.training.grpo import GrpoTrainer
from levelhead.training.objective import Objective
from levelhead.training.prepare import make_objective
from levelhead.training.stream import PromptStream
from oracle.context import PreflightContext
from oracle.synthetic import BATCHES, LONGEST, UPDATES, Row, group_size, make_groups, make_rows, small
from oracle.textbook import Settings, TaskSettings
from oracle.textbook.records import Floats

TOKENS = (24, 44)
"""Tokens of a micro-batch, fewer with one task or small groups: three micro-batches or more in an update."""
WATCHED = 2
"""First updates whose gradient of the weights is looked at."""
WATCHED_ENTRIES = 1 << 22
"""Entries of it that are, at least one parameter."""


@dataclass(slots=True)
class Pass:
    """What one forward pass of an update said of a completion, and what came back.

    Attributes:
        logp: (t,) log-probabilities that the objective was given.
        entropy: (t,) entropies that it was given.
        slope: (t,) gradient that reached the log-probabilities, all backward passes added up.
        entropy_slope: (t,) the same of the entropies.
        micro: Number of the micro-batch.
    """

    logp: Floats
    entropy: Floats
    slope: Floats
    entropy_slope: Floats
    micro: int


@dataclass(slots=True)
class Update:
    """One optimizer step.

    Attributes:
        batch: Number of its batch.
        index: Number in its batch.
        rows: Completions of its mini-batch.
        temperature: That the trainer scored it at.
        passes: By completion; more than one where it was scored more than once.
        gradient: Of the watched parameters, before clipping.
        norm: Of the whole gradient, by the updater's account.
        clipped: Factor by which clipping made it shorter, of the watched parameters.
    """

    batch: int
    index: int
    rows: list[int]
    temperature: float
    passes: dict[int, list[Pass]] = field(default_factory=dict)
    gradient: list[Tensor | None] | None = None
    norm: float = 0.0
    clipped: float = 1.0


@dataclass(slots=True)
class Batch:
    """One rollout batch.

    Attributes:
        groups: As handed to the trainer.
        strata: Of each group.
        before: (t,) what the policy says of each completion before the first update.
        scored: By completion, log-probabilities and entropies that the trainer was told before the first update.
        told: By completion, what the reference was said to say, and what it really says.
    """

    groups: Sequence[Group]
    strata: Sequence[str]
    before: Sequence[Floats]
    scored: dict[int, tuple[Floats, Floats]] = field(default_factory=dict)
    told: dict[int, tuple[Floats, Floats]] = field(default_factory=dict)


@dataclass(slots=True)
class Rehearsal:
    """All that happened.

    Attributes:
        settings: The recipe, as it was rehearsed.
        rows: Completions.
        batches: In order.
        updates: In order.
        real: By batch, (t,) each completion's log-probabilities as the trainer's policy computed them, unmoved.
        strays: What was scored that is none of the completions, or not the whole of one.
        exact: Whether everything was computed in float32.
        policy: That was trained.
    """

    settings: Settings
    rows: list[Row]
    batches: list[Batch]
    policy: Policy
    exact: bool
    updates: list[Update] = field(default_factory=list)
    real: list[dict[int, Floats]] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)


class Recorder:
    """Stands between a policy and its trainer.

    Args:
        rehearsal: Is filled.
    """

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        self.batch = 0
        self._by_tokens = {row.key: i for i, row in enumerate(rehearsal.rows)}
        self._packed: dict[int, tuple[MicroBatch, list[int]]] = {}
        self._passes = 0

    @contextlib.contextmanager
    def between(self, policy: Policy, objective: Objective) -> Iterator[None]:
        """Listen to a policy and to an objective inside."""
        pack, score, reference, plan = policy.pack, policy.score, policy.reference_logp, objective.plan

        def packed(sequences: Sequence[TokenSequence], tokens: int) -> list[MicroBatch]:
            made = pack(sequences, tokens)
            rows = [self._row(sequence) for sequence in sequences]
            self._packed |= {id(micro): (micro, [rows[i] for i in micro.indices]) for micro in made}
            return made

        def planned(samples: Any, **options: Any) -> Any:
            rows = [self._row(sample.sequence) for sample in samples]
            index = sum(update.batch == self.batch for update in self.rehearsal.updates)
            self.rehearsal.updates.append(Update(self.batch, index, rows, float(options["temperature"] or 1.0)))
            self._passes = 0
            return plan(samples, **options)

        def scored(micro: MicroBatch, temperature: float = 1.0) -> TokenStats:
            return self._scored(micro, score(micro, temperature))

        def told(micro: MicroBatch, temperature: float = 1.0) -> Tensor:
            return self._told(micro, reference(micro, temperature))

        wrapped = ((policy, "pack", packed), (policy, "score", scored), (policy, "reference_logp", told))
        for thing, name, made in (*wrapped, (objective, "plan", planned)):
            setattr(thing, name, made)
        try:
            yield
        finally:
            for thing, name in ((policy, "pack"), (policy, "score"), (policy, "reference_logp"), (objective, "plan")):
                delattr(thing, name)

    def _row(self, sequence: TokenSequence) -> int:
        row = self._by_tokens.get((tuple(sequence.context_ids), tuple(sequence.completion_ids)), -1)
        if row < 0:
            self.rehearsal.strays.append("a sequence is trained on that is none of the rollouts")
        return row

    def _members(self, micro: MicroBatch, values: Tensor) -> list[tuple[int, slice]]:
        """Completions of a micro-batch and where their tokens are."""
        rows = self._packed.get(id(micro), (micro, [-1] * len(micro.lengths)))[1]
        members, start = [], 0
        for row, length in zip(rows, micro.lengths, strict=True):
            if row >= 0 and length == len(self.rehearsal.rows[row].completion_ids):
                members.append((row, slice(start, start + length)))
            else:
                whole = len(self.rehearsal.rows[row].completion_ids) if row >= 0 else 0
                self.rehearsal.strays.append(f"{length} of {whole} tokens of a completion are scored")
            start += length
        if start != len(values):
            self.rehearsal.strays.append(f"{start} tokens are scored as {len(values)}")
        return members

    def _spread(self, members: Sequence[tuple[int, slice]], of: Callable[[Row], Floats], like: Tensor) -> Tensor:
        moved = np.zeros(len(like))
        for row, where in members:
            moved[where] = of(self.rehearsal.rows[row])
        return torch.tensor(moved, dtype=like.dtype, device=like.device)

    def _scored(self, micro: MicroBatch, stats: TokenStats) -> TokenStats:
        members = self._members(micro, stats.logp)
        training = stats.logp.requires_grad and bool(self.rehearsal.updates)
        update = self.rehearsal.updates[-1] if training else None
        at = min(update.index, UPDATES * UPDATES - 1) if update else 0

        def moved(row: Row) -> Floats:
            return row.lift + (row.moves[self.batch][at] if update else 0.0)

        real = _numbers(stats.logp)
        self.rehearsal.real[self.batch] |= {row: real[where] for row, where in members}
        logp = stats.logp + self._spread(members, moved, stats.logp)
        entropy = stats.entropy + self._spread(members, lambda row: row.doubt, stats.entropy)
        said, doubt = _numbers(logp), _numbers(entropy)
        if update is None:
            scores_by_row = {row: (said[where], doubt[where]) for row, where in members}
            self.rehearsal.batches[self.batch].scored |= scores_by_row
            return TokenStats(logp, entropy)
        zeros = np.zeros(len(said))
        passes = [Pass(said[w], doubt[w], zeros[w].copy(), zeros[w].copy(), self._passes) for _, w in members]
        for (row, _), forward_pass in zip(members, passes, strict=True):
            update.passes.setdefault(row, []).append(forward_pass)
        self._passes += 1

        def back(gradient: Tensor, name: str) -> None:
            slopes = _numbers(gradient)
            for (_, where), forward_pass in zip(members, passes, strict=True):
                setattr(forward_pass, name, getattr(forward_pass, name) + slopes[where])

        logp.register_hook(lambda gradient: back(gradient, "slope"))
        if entropy.requires_grad:
            entropy.register_hook(lambda gradient: back(gradient, "entropy_slope"))
        return TokenStats(logp, entropy)

    def _told(self, micro: MicroBatch, logp: Tensor) -> Tensor:
        members = self._members(micro, logp)
        moved = logp + self._spread(members, lambda row: row.lift + row.reference, logp)
        said, real = _numbers(moved), _numbers(logp)
        self.rehearsal.batches[self.batch].told |= {row: (said[where], real[where]) for row, where in members}
        return moved


class _WatchingUpdater(FrozenUpdater):
    """Keeps the gradient that reaches it, before and after clipping."""

    rehearsal: Rehearsal

    def prepare(self) -> float:
        """Clip, and note what was there."""
        update = self.rehearsal.updates[-1]
        watched = watched_parameters(self.rehearsal.policy)
        if update.batch == 0 and update.index < WATCHED:
            update.gradient = [None if p.grad is None else p.grad.detach().clone() for p in watched]
        before = _size([p.grad for p in watched])
        update.norm = super().prepare()
        update.clipped = _size([p.grad for p in watched]) / before if before > 0 else 1.0
        return update.norm


class _Rollouts(Replay):
    """Hands out one batch after the other; the second and later ones are sampled by older weights.

    A prompt that stands in a batch twice, as it may where there are few, is asked for by itself: each call gets as many
    groups as it asks for, and the next call goes on behind them.
    """

    def __init__(self, context: PreflightContext, batches: Sequence[Batch], recorder: Recorder) -> None:
        super().__init__(context.collector(), ())
        self._batches, self._recorder = batches, recorder
        self._handed_out: Counter[int] = Counter()

    async def collect(self, prompts: Sequence[Prompt], k: int, controls: Sampling, seed: int) -> Collected:
        """Return the next groups of the batch at hand."""
        batch = self._recorder.batch
        start = self._handed_out[batch]
        self._handed_out[batch] += len(prompts)
        groups = self._batches[batch].groups[start : start + len(prompts)]
        return Collected(list(groups), behind=int(batch > 0))

    def answers(self, groups: Sequence[Group]) -> dict[str, float]:
        """Nothing: nobody wrote these answers."""
        return {}

    def at_step(self, step: int, max_steps: int) -> None:
        """Tell no task of it."""


def watched_parameters(policy: Policy) -> list[torch.nn.Parameter]:
    """Return the parameters whose gradient is looked at: the last ones, up to a bound of entries."""
    parameters: list[torch.nn.Parameter] = []
    for parameter in reversed(policy.parameters):
        if parameters and sum(p.numel() for p in parameters) + parameter.numel() > WATCHED_ENTRIES:
            break
        parameters.append(parameter)
    return parameters


def rehearse(
    context: PreflightContext, grpo: Grpo, before: Callable[[Policy, Sequence[Row], float], Sequence[Floats]]
) -> Rehearsal:
    """Do two batches by the run's own trainer; weights stay, the gradient is dropped.

    Args:
        context: Of the preflight.
        grpo: The recipe's ``grpo`` section.
        before: What the policy says of completions at a temperature.
    """
    policy = context.policy
    if why_not_exact(policy) is None and any(p.dtype.itemsize < 4 for p in policy.model.parameters()):
        policy = exact_policy(policy)
    recipe, section = _small(context.recipe, grpo, len(context.setup.tasks))
    objective, estimator = make_objective(recipe, section, context.setup.tasks)
    most = facts_of(context.setup.weights, context.setup.tasks).most
    own = {name: _task_settings(task, most.get(name)) for task in recipe.tasks if (name := task.title)}
    settings = Settings(section, own)
    rows = make_rows(context, section)
    exact = all(p.dtype.itemsize >= 4 for p in policy.model.parameters())
    rehearsal = Rehearsal(settings, rows, [], policy, exact)
    recorder = Recorder(rehearsal)
    updater = _WatchingUpdater(policy.parameters, section.optimizer, section.steps)
    updater.rehearsal = rehearsal
    tasks = context.setup.tasks
    stream = PromptStream(list(tasks.values()), [context.setup.weights[name] for name in tasks], context.seed)
    collector = _Rollouts(context, rehearsal.batches, recorder)
    trainer = GrpoTrainer(policy, collector, stream, objective, updater, section, context.seed, estimator=estimator)
    if objective.coefficients.needs_reference:
        policy.keep_reference(trained=False)
    try:
        with recorder.between(policy, objective):
            for batch in range(BATCHES):
                recorder.batch = batch
                controls = section.sampling.at(batch, section.steps)
                says = before(policy, rows, controls.temperature or 1.0)
                lifted = [logp + row.lift for row, logp in zip(rows, says, strict=True)]
                rehearsal.batches.append(Batch(*make_groups(context, section, rows, batch, lifted), before=says))
                rehearsal.real.append({})
                if batch:  # one pass, in large micro-batches, is enough to see what a batch does to the next
                    trainer.config = section.model_copy(update={"epochs": 1, "tokens_per_microbatch": WHOLE})
                trainer.step(batch + 1)
    finally:
        policy.drop_reference()
        for parameter in policy.parameters:
            parameter.grad = None
    return rehearsal


def _small(recipe: Recipe, grpo: Grpo, tasks: int) -> tuple[Recipe, Grpo]:
    """The recipe with short answers and two mini-batches in two passes; nothing else is changed."""
    k, budget = group_size(grpo), grpo.sampling.max_new_tokens
    changes: dict[str, Any] = {
        "group_size": k,
        "batch_size": k * tasks * 4,
        "updates_per_batch": UPDATES,
        "epochs": UPDATES,
        "ahead": 0,  # a batch says by itself that it is behind
        "dynamic_sampling": 0,
        "tokens_per_microbatch": TOKENS[tasks > 1 and k > 2],
        "audit": Audit(first=0, every=0),
        "sampling": grpo.sampling.model_copy(update={"max_new_tokens": min(budget, LONGEST)}),
    }
    section = grpo.model_copy(update=changes)
    shaped = [task.model_copy(update={"shaping": _shorter(task.shaping, budget)}) for task in recipe.tasks]
    return recipe.model_copy(update={"tasks": shaped, "grpo": section}), section


def _shorter(shaping: Shaping, budget: int) -> Shaping:
    """Shaping whose length penalty acts on short answers."""
    penalty = shaping.length
    if penalty is None or budget <= LONGEST:
        return shaping
    keys = {key: value for key in ("max_length", "cache") if (value := getattr(penalty, key, None)) is not None}
    shorter = penalty.model_copy(update=dict(small(keys, LONGEST, budget)))
    return shaping.model_copy(update={"length": shorter})


def _task_settings(task: Any, most: float | None) -> TaskSettings:
    return TaskSettings(task.weight, task.kl, task.kl_controller, task.shaping, task.balance, most)


def _numbers(tensor: Tensor) -> Floats:
    return np.asarray(tensor.detach().to("cpu", torch.float64).numpy())


def _size(gradient: Sequence[Tensor | None]) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradient if g is not None))
