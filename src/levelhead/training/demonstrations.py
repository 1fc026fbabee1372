"""Perfect episodes: what tasks whose answers depend on an environment show to supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from levelhead.errors import InputError
from levelhead.policy.packing import MicroBatch, TokenSequence
from levelhead.policy.policy import Policy
from levelhead.records import Prompt
from levelhead.tasks.base import EpisodeLostError, ShownTurn, Task
from levelhead.training.loop import EventLoop
from levelhead.training.ranks import Ranks
from levelhead.waiting import all_or_none

KEPT = 4096
"""Episodes that are remembered, so that later epochs need not play them again."""


class Demonstrations:
    """Asks oracles, and lets demonstrators act; episodes are played side by side, and once.

    Args:
        tasks: By name.
        loop: Where demonstrators act.
    """

    def __init__(self, tasks: Mapping[str, Task], loop: EventLoop) -> None:
        self._tasks = tasks
        self._loop = loop
        self._played: dict[tuple[str, str], Sequence[ShownTurn]] = {}

    def show(self, prompts: Sequence[Prompt]) -> list[Sequence[ShownTurn]]:
        """Return the turns of each prompt's demonstration, none where its episode did not succeed.

        Raises:
            InputError: A task has no oracle for one of the prompts.
        """
        acted = [p for p in prompts if self._tasks[p.task].demonstrates]
        fresh = {(p.task, p.id): p for p in acted if (p.task, p.id) not in self._played}
        played = dict(self._played)
        if fresh:
            played |= zip(fresh, self._loop.run(self._play(list(fresh.values()))), strict=True)
            self._played = dict(list(played.items())[-KEPT:])
        return [
            played[prompt.task, prompt.id] if (prompt.task, prompt.id) in played else self._answer(prompt)
            for prompt in prompts
        ]

    async def _play(self, prompts: Sequence[Prompt]) -> list[Sequence[ShownTurn]]:
        return await all_or_none(self._demonstrate(prompt) for prompt in prompts)

    async def _demonstrate(self, prompt: Prompt) -> Sequence[ShownTurn]:
        task = self._tasks[prompt.task]
        try:
            return await task.demonstrate(prompt)
        except EpisodeLostError:
            return []

    def _answer(self, prompt: Prompt) -> Sequence[ShownTurn]:
        answers = self._tasks[prompt.task].oracle(prompt)
        if not answers:
            raise InputError(
                f"sft: task {prompt.task!r} has no perfect answer for prompt {prompt.id!r}; "
                "give it an oracle column, or remove the sft section"
            )
        return [(list(prompt.messages), answers[0])]


Show = Callable[[Sequence[Prompt]], list[TokenSequence]]
"""Returns one (context, completion) pair a turn of the demonstrations of some prompts."""


@dataclass(frozen=True, slots=True)
class SharedBatch:
    """The part of a batch that this process learns.

    Attributes:
        ranks: The processes.
        sequences: Its own.
        tokens: Completion tokens of the whole batch.
        count: Sequences of the whole batch.
        spare: A sequence to fill up with, of the process that has some.
    """

    ranks: Ranks
    sequences: Sequence[TokenSequence]
    tokens: int
    count: int
    spare: TokenSequence

    def micros(self, policy: Policy, tokens: int) -> Iterator[tuple[float, MicroBatch]]:
        """Yield micro-batches with their weights, 0 for those that only keep the processes in step.

        Args:
            policy: Packs them.
            tokens: Of one, at most.
        """
        own = policy.pack(self.sequences, tokens) if self.sequences else []
        real = len(own)
        if policy.sharded:
            own = self.ranks.filled_up(own, policy.pack([self.spare], tokens)[0])
        for index, micro in enumerate(own):
            yield float(index < real), micro

    def finish(self, policy: Policy, *sums: float) -> tuple[float, ...]:
        """Add up gradients, where the passes have not done so, and some sums over the processes."""
        if self.ranks.alone:
            return sums
        if not policy.sharded:
            for parameter in policy.parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self.ranks.add(parameter.grad)
        totals = self.ranks.totals({str(index): value for index, value in enumerate(sums)})
        return tuple(totals[str(index)] for index in range(len(sums)))


def batch_of(ranks: Ranks, prompts: Sequence[Prompt], show: Show) -> SharedBatch:
    """Show this process's part of a batch.

    Raises:
        InputError: Not one demonstration of the batch succeeded; or a task has none, on whichever process.
    """
    size = -(-len(prompts) // ranks.count)
    own = prompts[ranks.rank * size : (ranks.rank + 1) * size]
    sequences: list[TokenSequence] = []

    def shown() -> tuple[int, int, TokenSequence | None]:
        sequences.extend(show(own) if own else ())
        shortest = min(sequences, key=lambda s: len(s.input_ids), default=None)
        return len(sequences), sum(len(s.completion_ids) for s in sequences), shortest

    parts = ranks.agreed(shown)
    spare = next((part[2] for part in parts if part[2] is not None), None)
    if spare is None:
        raise none_succeeded(prompts)
    return SharedBatch(ranks, sequences, sum(part[1] for part in parts), sum(part[0] for part in parts), spare)


def none_succeeded(prompts: Sequence[Prompt]) -> InputError:
    """Return the error that there is nothing to learn from some prompts."""
    names = ", ".join(sorted({prompt.task for prompt in prompts}))
    return InputError(f"sft: none of {len(prompts)} demonstrations of {names} succeeded; remove the sft section")
