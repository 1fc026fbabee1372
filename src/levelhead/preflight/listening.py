"""Which hidden states and which labels a loss came from: what a gradient reaches in the passes of a policy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from levelhead.policy.packing import MicroBatch
from levelhead.policy.policy import Policy, TokenStats


@dataclass(slots=True)
class Listener:
    """Which places of the last hidden layer, and which labels, a loss came from.

    Attributes:
        passes: (input ids, whether a gradient reached each place) of every forward pass, both (rows, length).
        labels: (micro-batch, whether a gradient reached the log-probability of each of its m labels) of every one
            that was scored.
        scores: (micro-batch, log-probabilities of its m labels) of the same.
        stats: (statistics with gradient, slopes of the loss along the m log-probabilities and entropies) of the same.
    """

    passes: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    labels: list[tuple[MicroBatch, Tensor]] = field(default_factory=list)
    scores: list[tuple[MicroBatch, Tensor]] = field(default_factory=list)
    stats: list[tuple[TokenStats, Tensor, Tensor]] = field(default_factory=list)
    muted: bool = False
    """Whether gradients that arrive are those of single terms, which are not counted."""

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
def listening(policy: Policy, *, cut: bool = False) -> Iterator[Listener]:
    """Record which of the last hidden states of every forward pass inside a gradient reaches.

    Each backward pass is looked at by itself: two that run through the same states may cancel in their sum.

    Args:
        policy: Whose passes.
        cut: End every backward pass at the last hidden states, so that it costs the output layer alone.
    """
    listener = Listener()

    def note(module: Any, args: Any, kwargs: Mapping[str, Any], output: Any) -> Any:  # noqa: ARG001
        if cut and torch.is_grad_enabled():
            output.last_hidden_state = output.last_hidden_state.detach().requires_grad_()
        hidden = output.last_hidden_state
        if hidden.requires_grad:
            listener.passes.append((kwargs["input_ids"].cpu(), _reached(listener, hidden)))
        return output

    score = policy.score

    def scored(batch: MicroBatch, temperature: float = 1.0) -> TokenStats:
        stats = score(batch, temperature)
        if stats.logp.requires_grad:
            listener.labels.append((batch, _reached(listener, stats.logp)))
            listener.scores.append((batch, stats.logp.detach()))
            listener.stats.append((stats, _slopes(listener, stats.logp), _slopes(listener, stats.entropy)))
        return stats

    handle = policy.base.get_decoder().register_forward_hook(note, with_kwargs=True)
    vars(policy)["score"] = scored
    try:
        yield listener
    finally:
        handle.remove()
        del vars(policy)["score"]


def _reached(listener: Listener, values: Tensor) -> Tensor:
    """Return a mask over values (m,) or states (rows, length, d) that becomes true where a backward pass gets to."""
    reached = torch.zeros(values.shape[:2], dtype=torch.bool, device=values.device)

    def mark(grad: Tensor | None) -> None:
        if grad is not None and not listener.muted:
            reached.logical_or_((grad != 0).any(-1) if grad.dim() > 1 else grad != 0)

    values.register_hook(mark)
    return reached


def _slopes(listener: Listener, values: Tensor) -> Tensor:
    """Return an (m,) tensor that takes up the gradients that arrive at values, summed over backward passes."""
    total = torch.zeros_like(values, requires_grad=False)

    def add(grad: Tensor | None) -> None:
        if grad is not None and not listener.muted:
            total.add_(grad.detach())

    if values.requires_grad:
        values.register_hook(add)
    return total
