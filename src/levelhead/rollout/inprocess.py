"""The in-process sampler: groups of completions from any Hugging Face causal language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from levelhead.policy.policy import Policy
from levelhead.recipe.sampling import Sampling
from levelhead.records import FinishReason, Prompt, Turn
from levelhead.rollout.draws import uniforms
from levelhead.rollout.logits import LogitsPipeline, draw

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
        rows: Completions drawn at once.
    """

    def __init__(self, policy: Policy, rows: int = 256) -> None:
        self._policy = policy
        self._rows = rows
        self._version = 0
        self.suppressed = 0.0
        """Draws that the minimum length is expected to have changed, in the last call."""

    @property
    def version(self) -> int:
        """Optimizer updates that the weights in use have seen."""
        return self._version

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
        chunk = max(1, self._rows // k)
        for start in range(0, len(by_length), chunk):
            members = by_length[start : start + chunk]
            rows = [
                _Row(i, uniforms(seed, prompts[i].id, index, controls.max_new_tokens))
                for i in members
                for index in range(k)
            ]
            self._draw([prompts[i] for i in members], k, rows, controls)
            for row in rows:
                turns[row.prompt].append(row.turn(prompts[row.prompt]))
        return turns

    def _draw(self, prompts: list[Prompt], k: int, rows: list[_Row], controls: Sampling) -> None:
        """Draw every row to its end."""
        codec = self._policy.codec
        device = self._policy.device
        stops = torch.tensor(sorted(codec.stop_ids), device=device)
        logits, cache, mask = self._prefill(prompts, k)
        pipeline = LogitsPipeline(controls, codec.stop_ids, logits.shape[-1])
        live = list(range(len(rows)))
        draws = torch.from_numpy(np.stack([row.draws for row in rows])).to(device)
        history = torch.zeros((len(rows), 0), dtype=torch.long, device=device)
        alive = torch.ones(len(rows), dtype=torch.bool, device=device)
        columns: list[tuple[list[int], Tensor, Tensor, Tensor]] = []
        for position in range(controls.max_new_tokens):
            chance = pipeline(logits, history, position)
            if controls.temperature == 0:
                tokens = chance.behaviour_bv.argmax(-1)
            else:
                tokens = draw(chance.behaviour_bv, draws[:, position])
            index = tokens[:, None]
            logprobs, behaviour = chance.policy_bv.gather(1, index)[:, 0], chance.behaviour_bv.gather(1, index)[:, 0]
            columns.append((live, tokens, logprobs, behaviour))
            if chance.suppressed_b is not None:
                self.suppressed += float(chance.suppressed_b[alive].sum())
            alive = alive & ~torch.isin(tokens, stops)
            left = int(alive.sum())
            if left == 0 or position + 1 == controls.max_new_tokens:
                break
            history = torch.cat([history, index], 1)
            if len(live) - left >= max(1, COMPACT_FRACTION * len(live)):
                keep = alive.nonzero()[:, 0]
                cache.batch_select_indices(keep)
                mask, draws, history, tokens = mask[keep], draws[keep], history[keep], tokens[keep]
                live = [live[i] for i in keep.tolist()]
                alive = torch.ones(len(live), dtype=torch.bool, device=device)
            mask = torch.cat([mask, mask.new_ones((len(live), 1))], 1)
            logits = self._forward(tokens[:, None], mask, cache)
        _collect(rows, columns, codec.stop_ids)

    def _prefill(self, prompts: list[Prompt], k: int) -> tuple[Tensor, DynamicCache, Tensor]:
        """Run each different prompt once, left padded, and hand its last logits and cache to its rows, k a prompt."""
        device = self._policy.device
        place = {token_ids: row for row, token_ids in enumerate(dict.fromkeys(p.token_ids for p in prompts))}
        longest = max(map(len, place))
        ids = torch.full((len(place), longest), self._policy.codec.pad_id)
        mask = torch.zeros((len(place), longest), dtype=torch.long)
        for token_ids, row in place.items():
            ids[row, longest - len(token_ids) :] = torch.tensor(token_ids)
            mask[row, longest - len(token_ids) :] = 1
        mask = mask.to(device)
        cache = DynamicCache(config=self._policy.base.config)
        logits = self._forward(ids.to(device), mask, cache)
        if k == 1 and len(place) == len(prompts):
            return logits, cache, mask
        rows = torch.tensor([place[prompt.token_ids] for prompt in prompts for _ in range(k)], device=device)
        cache.batch_select_indices(rows)
        return logits[rows], cache, mask[rows]

    def _forward(self, ids: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
        """Float32 logits of the last position; positions count real tokens only."""
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        padded = None if bool(mask.all()) else mask
        with self._policy.autocast():
            output = self._policy.base(
                input_ids=ids,
                attention_mask=padded,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
        logits: Tensor = output.logits[:, -1].float()
        return logits


def _collect(
    rows: list[_Row], columns: list[tuple[list[int], Tensor, Tensor, Tensor]], stop_ids: frozenset[int]
) -> None:
    """Hand the drawn columns back to their rows, each up to and with its stop token."""
    for live, tokens, logprobs, behaviour in columns:
        drawn = zip(live, tokens.tolist(), logprobs.tolist(), behaviour.tolist(), strict=True)
        for index, token, logprob, drawn_logprob in drawn:
            row = rows[index]
            if row.finish is None:
                row.tokens.append(token)
                row.logprobs.append(logprob)
                row.behaviour.append(drawn_logprob)
                if token in stop_ids:
                    row.finish = "stop"
