"""The few passes through the model that a preflight makes, all over one small set of rollouts, each made once.

Four forward passes and one backward pass for a GRPO recipe: the plain one, which everything else is held against, the
trainer's own step, and two with weights moved along its gradient.  A KL penalty adds the reference's, a supervised
stage one forward pass whose backward pass ends at the last hidden states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from levelhead import metrics as metric
from levelhead.errors import InputError, first_line
from levelhead.objective.numerics import local
from levelhead.policy.packing import TokenSequence
from levelhead.policy.policy import Policy
from levelhead.policy.rounding import Tolerance, tolerance
from levelhead.preflight.listening import Listener
from levelhead.preflight.trial import Trial, contrasted, grpo_trial, sft_trial, uneven
from levelhead.records import ChatMessage, ChatOptions, Group, Rollout, Score, Turn
from levelhead.tasks.base import has_one_turn
from levelhead.training.collect import Collector
from levelhead.training.demonstrations import Demonstrations
from levelhead.training.loop import EventLoop
from levelhead.training.prepare import Setup

TRIED = 16
"""Completion tokens of a rollout that go through the model, at most."""
COMPARED = 2
"""Rollouts per prompt whose log-probabilities are computed the plain way."""
MOVED = 2e-3
"""Nats by which log-probabilities are to move on average, weighted by what the loss makes of them, in a trial step."""
LONGEST = 1e-3
"""Share of the weights' norm that such a step may take, at most."""
ATTEMPTS = 3
"""Lengths of such a step that are tried where the first one does not agree with the slopes."""
NEAR = (0.7, 1.4)
"""Range of measured over predicted change in which the two agree."""


@dataclass(frozen=True, slots=True)
class PlainTurn:
    """One sampled turn, computed the slow and obvious way: no cache, no packing, no mask.

    Attributes:
        turn: As the sampler recorded it.
        logits_tv: (t, v) float32 logits that predict its first t tokens.
    """

    turn: Turn
    logits_tv: Tensor

    def logp(self, temperature: float) -> Tensor:
        """Return the (t,) log-probabilities of the sampled tokens at a temperature, on the CPU."""
        ids = torch.tensor(self.turn.completion_ids[: len(self.logits_tv)], device=self.logits_tv.device)
        return (self.logits_tv / temperature).log_softmax(-1).gather(-1, ids[:, None])[:, 0].cpu()


@dataclass(frozen=True, slots=True)
class Descent:
    """Whether a small step along the update's own gradient changes its loss as the gradient says.

    Attributes:
        predicted: Change of the loss, to first order.
        measured: Half the difference of the losses a step forward and a step back, by the slopes along the tokens.
        step: Share of the weights' norm.
        judged: Whether the step was short enough for the two to be compared.
        why: Why it was not, as a key: ``precision``, ``flat`` or ``curved``.
    """

    predicted: float = 0.0
    measured: float = 0.0
    step: float = 0.0
    judged: bool = False
    why: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the measured change is the predicted one."""
        return self.predicted != 0 and NEAR[0] < self.measured / self.predicted < NEAR[1]


class SharedPasses:
    """Makes each pass when it is first asked for.

    Args:
        setup: Policy, tasks and recipe.
        groups: Sampled rollouts.
        turns: What the sampler generated, by its own account.
        loop: Where demonstrators act.
        collector: The run's own.
        temperature: That the rollouts were sampled at; positive.
        seed: Of the preflight.
    """

    def __init__(
        self,
        setup: Setup,
        groups: Sequence[Group],
        turns: Sequence[Turn],
        loop: EventLoop,
        collector: Collector,
        temperature: float,
        seed: int,
    ) -> None:
        self._setup, self._loop, self._collector, self._seed = setup, loop, collector, seed
        self._groups, self._turns, self.policy, self.temperature = groups, turns, setup.policy, temperature
        self.broken = ""
        """What broke the trial step off, in one line."""

    @cached_property
    def plain(self) -> list[PlainTurn]:
        """The first and the last sampled turn of each context, computed the plain way; one forward pass per context."""
        by_context: dict[tuple[int, ...], list[Turn]] = {}
        for turn in self._turns:
            if turn.completion_ids:
                by_context.setdefault(turn.context_ids, []).append(turn)
        return [
            plain
            for context_ids, members in by_context.items()
            for plain in _plain(self.policy, context_ids, members[:1] + members[1:][-(COMPARED - 1) :])
        ]

    @property
    def tolerance(self) -> Tolerance:
        """How far rounding alone may take two accounts of the sampled tokens from each other."""
        largest = [each.logits_tv.abs().amax(-1) for each in self.plain]
        return tolerance(self.policy, float(torch.cat(largest).mean()) / self.temperature if largest else 0.0)

    @cached_property
    def trial(self) -> Trial | None:
        """One GRPO step on the rollouts, cut to different lengths, with known rewards; ``None`` without a group.

        Also where it breaks off: then :attr:`broken` says why, and ``signs/audit`` reports it.
        """
        groups = [group for group in self._groups if len(group.rollouts) > 1]
        if self._setup.recipe.grpo is None or not groups:
            return None
        stop_id = self.policy.codec.stop_id
        examples = [*uneven(groups, stop_id, TRIED), *self._shown(len(groups[0].rollouts))]
        try:
            return grpo_trial(self._setup, self._collector, contrasted(examples), self._seed)
        except RuntimeError as error:
            self.broken = first_line(error)[:200]
            return None

    def _shown(self, k: int) -> list[Group]:
        """Episodes of several turns from demonstrations, where the policy's own ended after the first.

        A group holds a perfect episode, and the same without its last turn, in turn, so that the two differ in length.
        """
        groups, tasks = [], self._setup.tasks
        long = {group.prompt.task for group in self._groups for r in group.rollouts if len(r.turns) > 1}
        for name, task in tasks.items():
            if name in long or has_one_turn(task) or not task.demonstrates:
                continue
            prompts = [group.prompt for group in self._groups if group.prompt.task == name][:1]
            try:
                shown = Demonstrations(tasks, self._loop).show(prompts)
            except InputError:
                continue
            for prompt, episode in zip(prompts, shown, strict=True):
                turns = [self._turn(messages, answer, prompt.chat) for messages, answer in episode[:2]]
                if len(turns) > 1:
                    whole = Rollout(prompt.id, tuple(turns), Score(0.0), 0, ("",) * len(turns))
                    shorter = replace(whole, turns=whole.turns[:-1], text=whole.text[:-1])
                    groups.append(Group(prompt, tuple(shorter if i % 2 else whole for i in range(k))))
        return groups

    def _turn(self, messages: Sequence[ChatMessage], answer: str | ChatMessage, chat: ChatOptions) -> Turn:
        """An answer as if the policy had sampled it: its first tokens and a stop token."""
        pair = self.policy.codec.demonstration(messages, answer, chat)
        ids = (*pair.completion_ids[: TRIED - 1], self.policy.codec.stop_id)
        ids = pair.completion_ids if len(pair.completion_ids) <= TRIED else ids
        zeros = (0.0,) * len(ids)
        return Turn(pair.context_ids, ids, zeros, zeros, "stop")

    @cached_property
    def sft(self) -> tuple[list[TokenSequence], Listener]:
        """One supervised step on a few demonstrations, and where its loss came from.

        Raises:
            InputError: A task has no oracle, or not one demonstration succeeded.
        """
        return sft_trial(self._setup, self._loop, self._seed)

    @cached_property
    def descent(self) -> Descent:
        """A small step along the gradient of :attr:`trial`, forward and back; shorter ones where the two disagree."""
        trial = self.trial
        assert trial is not None  # noqa: S101 - asked for where there is one
        policy = self.policy
        moved = [(p, p.grad.detach().clone()) for p in policy.parameters if p.grad is not None]
        policy.model.zero_grad()
        if policy.base.dtype != torch.float32 or policy.sharded:
            return Descent(why="precision")
        norm = math.sqrt(sum(float(local(g).double().square().sum()) for _, g in moved))
        total = float(trial.result.record.values.get(metric.GRAD_NORM, 0.0))
        weights = math.sqrt(sum(float(local(p).detach().double().square().sum()) for p, _ in moved))
        slopes = sum(float(along.abs().sum()) for _, along, _ in trial.listener.stats)
        if not (norm > 0 and slopes > 0 and math.isfinite(total)):
            return Descent(why="flat")
        size, last = MOVED * slopes / (total * norm), Descent(why="flat")
        for _ in range(ATTEMPTS):
            if size * norm > LONGEST * max(weights, 1.0):
                return replace(last, judged=False)
            measured = self._difference(trial, moved, size)
            now = Descent(-size * total * norm, measured, size * norm / max(weights, 1.0), True)
            if now.agrees:
                return now
            # Twice the same ratio at two lengths: the step is short enough, and the gradient is not the loss's.
            if last.measured and abs(now.measured / now.predicted / (last.measured / last.predicted) - 1) < 0.1:
                return now
            last, size = now, size / 4
        return replace(last, judged=False, why="curved")

    @torch.no_grad()
    def _difference(self, trial: Trial, moved: Sequence[tuple[Tensor, Tensor]], size: float) -> float:
        """Half the loss a step forward minus a step back, by the slopes along log-probabilities and entropies."""
        policy = self.policy
        before = [parameter.detach().clone() for parameter, _ in moved]
        compute, policy.compute_dtype = policy.compute_dtype, torch.float32
        losses = []
        try:
            for sign in (-1.0, 1.0):
                for (parameter, grad), old in zip(moved, before, strict=True):
                    parameter.copy_(old + sign * size * grad)
                losses.append(self._linear_loss(trial))
        finally:
            policy.compute_dtype = compute
            for (parameter, _), old in zip(moved, before, strict=True):
                parameter.copy_(old)
        return (losses[0] - losses[1]) / 2

    def _linear_loss(self, trial: Trial) -> float:
        """The loss by its slopes along the tokens, up to a constant."""
        total = 0.0
        with self.policy.training():
            for (micro, _), (_, along, along_entropy) in zip(trial.listener.labels, trial.listener.stats, strict=True):
                stats = self.policy.score(micro, self.temperature)
                total += float((stats.logp.double() * along).sum() + (stats.entropy.double() * along_entropy).sum())
        return total


@torch.no_grad()
def _plain(policy: Policy, context_ids: Sequence[int], turns: Sequence[Turn]) -> list[PlainTurn]:
    """One row per turn, filled up on the right: what stands behind a token cannot reach it."""
    completions = [turn.completion_ids[:TRIED] for turn in turns]
    longest = max(map(len, completions))
    rows = [[*context_ids, *ids, *[context_ids[0]] * (longest - len(ids))] for ids in completions]
    ids = torch.tensor(rows, device=policy.device)
    output = policy.forward(policy.base, input_ids=ids, use_cache=False, logits_to_keep=longest + 1)
    tables = output.logits[:, :-1].float()
    return [PlainTurn(turn, table[: len(ids)]) for turn, table, ids in zip(turns, tables, completions, strict=True)]
