"""The in-process sampler: groups of completions from any Hugging Face causal language model."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levelhead.errors import PolicyError
from levelhead.policy.backends.base import MakeDecoder
from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import Sampling
from levelhead.records import FinishReason, Prompt, Turn
from levelhead.rollout.draws import uniforms
from levelhead.rollout.logits import LogitsPipeline

COMPACT_FRACTION = 0.125
"""Finished rows leave the batch once they make up this share of it: leaving costs a copy of the cache."""


@dataclass(slots=True)
class _Row:
    """One completion being drawn."""

    prompt: int
    draws: NDArray[np.float64]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    behaviour: list[float] = field(default_factory=list)
    finish: FinishReason | None = None

    def turn(self, prompt: Prompt) -> Turn:
        return Turn(
            prompt.token_ids,
            tuple(self.tokens),
            tuple(self.logprobs),
            tuple(self.behaviour),
            self.finish or "length",
        )


class InProcessSampler:
    """Samples from the policy that is being trained: no copy of the weights, always the newest version.

    Each prompt is computed once, however many completions it has; rows that have finished leave the batch.

    Args:
        policy: Whose model draws.
        rows: Completions drawn at once; what the controls say unless given.
    """

    def __init__(self, policy: Policy, rows: int | None = None) -> None:
        self._policy = policy
        self._rows = rows
        self._version = 0
        self.suppressed = 0.0
        """Draws that the minimum length is expected to have changed, in the last call."""
        self.called_off = False
        """Set by another thread to end a call at its next token, with a :class:`CancelledError`."""

    @property
    def version(self) -> int:
        """Optimizer updates that the weights in use have seen."""
        return self._version

    @property
    def policy(self) -> Policy:
        """Whose model draws."""
        return self._policy

    def sync(self, policy: Policy, version: int) -> None:
        """Take note of the policy's newest version; the weights are shared."""
        self._policy = policy
        self._version = version

    @torch.inference_mode()
    def sample(self, prompts: Sequence[Prompt], k: int, controls: Sampling, seed: int) -> list[list[Turn]]:
        """Draw k completions of each rendered prompt; see :class:`levelhead.rollout.base.Sampler`."""
        self.suppressed = 0.0
        turns: list[list[Turn]] = [[] for _ in prompts]
        by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i].token_ids))
        chunk = max(1, (self._rows or controls.rows_at_once) // k)
        make_decoder = self._policy.backend.decoders(self._policy)
        for start in range(0, len(by_length), chunk):
            members = by_length[start : start + chunk]
            rows = [
                _Row(i, uniforms(seed, prompts[i].id, index, controls.max_new_tokens))
                for i in members
                for index in range(k)
            ]
            self._draw([prompts[i] for i in members], k, rows, controls, make_decoder)
            for row in rows:
                turns[row.prompt].append(row.turn(prompts[row.prompt]))
        return turns

    def _draw(
        self, prompts: list[Prompt], k: int, rows: list[_Row], controls: Sampling, make_decoder: MakeDecoder
    ) -> None:
        """Draw every row to its end."""
        codec = self._policy.codec
        device = self._policy.device
        budget = controls.max_new_tokens
        stops = torch.tensor(sorted(codec.stop_ids), device=device)
        decoder = make_decoder(prompts, k, budget)
        logits = decoder.start()
        if bool(logits.isnan().any()):
            raise PolicyError(
                "the policy's logits are not numbers, so its weights are lost; go on from the newest checkpoint with "
                "--resume, a lower learning rate, and guard.policy: protect"
            )
        pipeline = LogitsPipeline(controls, codec.stop_ids, logits.shape[-1])
        live = torch.arange(len(rows), device=device)
        draws = torch.from_numpy(np.stack([row.draws for row in rows])).to(device)
        # One line a row; a row that has left keeps what it has.
        ids = torch.zeros((len(rows), budget), dtype=torch.long, device=device)
        logprobs, behaviour = logits.new_zeros(ids.shape), logits.new_zeros(ids.shape)
        alive = torch.ones(len(rows), dtype=torch.bool, device=device)
        for position in range(budget):
            if self.called_off:
                raise CancelledError
            history = ids[live, :position] if pipeline.needs_history else ids[:, :0]
            drawn = pipeline.draw(logits, history, position, draws[:, position])
            tokens = drawn.tokens_b
            for kept, new in ((ids, tokens), (logprobs, drawn.policy_b), (behaviour, drawn.behaviour_b)):
                kept.select(1, position).index_copy_(0, live, new)
            if drawn.suppressed_b is not None:
                self.suppressed += float((drawn.suppressed_b * alive).sum())
            alive = alive & ~torch.isin(tokens, stops)
            left = int(alive.sum())
            if left == 0 or position + 1 == budget:
                break
            if len(live) - left >= max(1, COMPACT_FRACTION * len(live)):
                keep = alive.nonzero()[:, 0]
                decoder.keep(keep)
                draws, tokens, live = draws[keep], tokens[keep], live[keep]
                alive = torch.ones(len(live), dtype=torch.bool, device=device)
            logits = decoder.step(tokens)
        _collect(rows, ids[:, : position + 1], logprobs, behaviour, stops)


def _collect(rows: list[_Row], ids: Tensor, logprobs: Tensor, behaviour: Tensor, stops: Tensor) -> None:
    """Hand the drawn tokens back to their rows, each up to and with its stop token."""
    stopped = torch.isin(ids, stops)
    first = torch.where(stopped.any(1), stopped.int().argmax(1) + 1, ids.shape[1]).tolist()
    ended = stopped.any(1).tolist()
    for row, length, end, *values in zip(
        rows, first, ended, ids.tolist(), logprobs.tolist(), behaviour.tolist(), strict=True
    ):
        row.tokens, row.logprobs, row.behaviour = (value[:length] for value in values)
        row.finish = "stop" if end else None
