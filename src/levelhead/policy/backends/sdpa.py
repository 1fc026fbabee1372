"""The reference backend: rows padded to one length, trees under a dense mask; any model, any device."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from levelhead.policy.backends.base import MakeDecoder, PolicyLike
from levelhead.policy.packing import MicroBatch, TokenSequence, pack
from levelhead.records import Prompt


class Sdpa:
    """A backend for every model: rows padded to one length, trees under a dense mask."""

    name = "sdpa"

    @classmethod
    def supports(cls, _policy: PolicyLike) -> None:
        """Every causal language model of transformers."""

    def pack(self, policy: PolicyLike, sequences: Sequence[TokenSequence], tokens: int) -> list[MicroBatch]:
        """Pack sequences into padded rows, or into trees where the policy shares prefixes."""
        return pack(sequences, tokens=tokens, pad_id=policy.codec.pad_id, share=policy.shares_prefixes)

    def shares(self, policy: PolicyLike) -> bool:
        """Whether prefixes are computed once: as the policy says."""
        return policy.shares_prefixes

    def hidden(self, policy: PolicyLike, model: Any, batch: MicroBatch) -> Tensor:
        """Return the needed hidden states, one sequence a row.

        Raises:
            ValueError: The micro-batch was packed for a backend that computes trees without a mask.
        """
        if batch.nodes:
            raise ValueError(
                "the micro-batch holds prefix trees that this model cannot compute; pack it with its policy"
            )
        output = policy.forward(
            model.get_decoder(),
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            use_cache=False,
        )
        hidden: Tensor = output.last_hidden_state
        return hidden.flatten(0, 1)[batch.gather]

    def decoders(self, policy: PolicyLike) -> MakeDecoder:
        """Return what makes decoders over padded rows."""
        return functools.partial(PaddedDecoder, policy)


def distinct(prompts: Sequence[Prompt], k: int) -> tuple[list[tuple[int, ...]], Tensor]:
    """Token ids of the different prompts, and which of them each row has, (prompts x k,)."""
    places: dict[tuple[int, ...], int] = {}
    rows = [places.setdefault(prompt.token_ids, len(places)) for prompt in prompts for _ in range(k)]
    return list(places), torch.tensor(rows)


class PaddedDecoder:
    """For any model: prompts are left padded, and each row has transformers' own cache.

    Each different prompt is computed once; its cache is copied to its rows.
    """

    def __init__(self, policy: PolicyLike, prompts: Sequence[Prompt], k: int, _budget: int = 0) -> None:
        self._policy = policy
        different, self._prompt_of = distinct(prompts, k)
        longest = max(map(len, different))
        ids = torch.full((len(different), longest), policy.codec.pad_id)
        mask = torch.zeros((len(different), longest), dtype=torch.long)
        for row, token_ids in enumerate(different):
            ids[row, longest - len(token_ids) :] = torch.tensor(token_ids)
            mask[row, longest - len(token_ids) :] = 1
        self._ids, self._mask = ids.to(policy.device), mask.to(policy.device)
        self._cache = DynamicCache(config=policy.base.config)

    def start(self) -> Tensor:
        """Compute every prompt once, and return the logits behind it, (rows, v) float32."""
        logits = self.forward(self._ids, self._mask)
        if len(self._prompt_of) == len(self._ids):  # one row a prompt, in order
            return logits
        rows = self._prompt_of.to(self._policy.device)
        self.keep(rows)
        return logits[rows]

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to each row, (rows,), and return the logits behind it, (rows, v) float32."""
        self._mask = torch.cat([self._mask, self._mask.new_ones((len(tokens), 1))], 1)
        return self.forward(tokens[:, None], self._mask)

    def keep(self, rows: Tensor) -> None:
        """Let all rows go but those at the given ascending positions."""
        # The one selection of rows that the caches of convolution and recurrent layers have too.
        self._cache.reorder_cache(rows)  # type: ignore[arg-type]
        self._mask = self._mask[rows]

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Float32 logits of the last position; positions count real tokens only."""
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        padded = None if bool(mask.all()) else mask
        output = self._policy.forward(
            self._policy.base,
            input_ids=ids,
            attention_mask=padded,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits
