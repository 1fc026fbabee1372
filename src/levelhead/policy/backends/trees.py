"""Attention over prefix trees as transformers calls it, and the trial of a model on them.

The function is registered with transformers under the name :data:`~levelhead.policy.backends.base.TREES`, and receives
what it needs as the keyword ``trees`` of the model's forward; without the keyword it is transformers' own ``sdpa``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from levelhead.policy.backends.base import TREES, PolicyLike
from levelhead.policy.backends.sdpa import Sdpa
from levelhead.policy.packing import MicroBatch, TokenSequence, pack

TREE_TOLERANCE = {"exact": 1e-4, "rounded": 0.25}
"""Relative distance of hidden states over trees from those under a mask, in float32 and in coarser types.

In bf16 the rounding of thirty layers makes 0.04 to 0.12 on a pretrained model; wrong attention makes 0.7 and more.
"""

_LONGEST_TRIAL = 64
"""Tokens up to which a trial's sequences outgrow a sliding window."""

_FOREIGN = ("softcap", "s_aux", "position_bias", "cache")
"""Keywords of attention variants that are not computed here."""


class TreeAttention(Protocol):
    """What stands in for an attention mask."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Compute the attention of one layer.

        Args:
            layer: Its index.
            query: (b, heads, t, d).
            key: (b, key/value heads, t, d) of the same tokens.
            value: As the keys.
            scale: On the products of queries and keys.

        Returns:
            (b, heads, t, d).
        """
        ...


class RowOfTrees(TreeAttention):
    """Attention over the tokens of one flat row, in one pass of a model; may keep their keys and values.

    Args:
        keep: Whether to keep keys and values, layer by layer, in :attr:`keys` and :attr:`values`.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.seen = 0
        """Layers that have attended."""
        self._keep = keep

    def _layer(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Count a layer, and return its queries, keys and values in the type that it computes in."""
        self.seen += 1
        if torch.is_autocast_enabled(query.device.type):
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        if self._keep:
            self.keys.append(key)
            self.values.append(value)
        return query, key, value


def unused_mask(device: torch.device) -> Tensor:
    """A mask for a model that is called with ``trees``: of a shape that it hands on as it is."""
    return torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device)


def branching_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    trees: TreeAttention | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it.

    Raises:
        ValueError: The model asks for a variant of attention that only exists without ``trees``.
    """
    if trees is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return plain
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    odd = [name for name in _FOREIGN if kwargs.get(name) is not None] + (["dropout"] if dropout else [])
    if odd:
        raise ValueError(f"attention with {odd[0]} cannot run on trees")
    windows = getattr(trees, "windows", None)
    if windows is not None and kwargs.get("sliding_window", windows[layer]) != windows[layer]:
        window = kwargs["sliding_window"]
        raise ValueError(f"layer {layer} says that its window is {window}, and its config {windows[layer]}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = trees.attend(layer, query, key, value, scale)
    return out.transpose(1, 2).contiguous(), None


def tree_states(policy: PolicyLike, model: Any, batch: MicroBatch, forest: RowOfTrees) -> Tensor:
    """(m, d) last hidden states that predict the completion tokens of a flat micro-batch, differentiable.

    Raises:
        RuntimeError: Not every layer of the model looked at the tree.
    """
    output = policy.forward(
        model.get_decoder(),
        input_ids=batch.input_ids,
        attention_mask=unused_mask(batch.input_ids.device),
        position_ids=batch.position_ids,
        use_cache=False,
        trees=forest,
    )
    layers = model.config.num_hidden_layers
    if forest.seen != layers:
        raise RuntimeError(f"{forest.seen} of {layers} layers looked at the prefix tree")
    hidden: Tensor = output.last_hidden_state
    return hidden.flatten(0, 1)[batch.gather]


def tree_logits(
    policy: PolicyLike, model: Any, ids: Tensor, positions: Tensor, trees: TreeAttention, needed: Tensor | None = None
) -> Tensor:
    """(n, v) float32 logits of some positions of one row, or of the only one of each row."""
    output = policy.forward(
        model,
        input_ids=ids,
        attention_mask=unused_mask(ids.device),
        position_ids=positions,
        use_cache=False,
        logits_to_keep=1 if needed is None else needed,
        trees=trees,
    )
    logits: Tensor = output.logits.float().flatten(0, 1)
    return logits


def exactly(policy: PolicyLike) -> bool:
    """Whether a policy computes in float32, products of matrices included."""
    rounded = policy.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return policy.compute_dtype == policy.base.dtype == torch.float32 and not rounded


@torch.no_grad()
def attend_over_trees(
    policy: PolicyLike, hidden: Callable[[PolicyLike, Any, MicroBatch], Tensor], window: int | None = None
) -> str | None:
    """Let a model compute attention over trees; returns why it cannot, and then leaves it as it was.

    A small tree is computed both ways and compared.

    Args:
        policy: Of the model.
        hidden: As :meth:`~levelhead.policy.backends.base.Backend.hidden`, on trees.
        window: Tokens that the narrowest layer looks back; the tree reaches further where that is not far.
    """
    sequences = _trial(window)
    (flat,) = pack(sequences, tokens=1000, flat=True)
    padded = pack(sequences, tokens=1000, pad_id=policy.codec.pad_id, share=policy.shares_prefixes)
    config = policy.base.config
    before = config._attn_implementation
    order, flat_order = (_by_sequence(batches).to(policy.device) for batches in (padded, [flat]))
    try:
        want = torch.cat([Sdpa().hidden(policy, policy.base, batch.to(policy.device)) for batch in padded]).float()[
            order
        ]
        config._attn_implementation = TREES
        states = hidden(policy, policy.base, flat.to(policy.device)).float()[flat_order]
        gap = float((states - want).norm() / want.norm())
        reason = f"its outputs differ by {gap:.2g}"
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        gap, reason = math.inf, str(error).partition("\n")[0]
    if gap <= TREE_TOLERANCE["exact" if exactly(policy) else "rounded"]:
        return None
    config._attn_implementation = before
    return reason


def _trial(window: int | None) -> list[TokenSequence]:
    """Three sequences of which two share a beginning, longer than a narrow window."""
    deep = (0, 1, 2) * (1 if window is None or window > _LONGEST_TRIAL else 2 + window // 3)
    return [TokenSequence(deep, (1, 2)), TokenSequence(deep, (2, 1, 2)), TokenSequence((2,), (0, 1))]


def _by_sequence(batches: list[MicroBatch]) -> Tensor:
    """Places of all completion tokens, in the order of the caller's sequences."""
    pairs = [pair for batch in batches for pair in zip(batch.indices, batch.lengths, strict=True)]
    owners = torch.tensor([index for index, length in pairs for _ in range(length)])
    return owners.argsort(stable=True)


AttentionInterface.register(TREES, branching_attention)
AttentionMaskInterface.register(TREES, sdpa_mask)
