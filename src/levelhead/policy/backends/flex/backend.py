"""The backend of a GPU: prefix trees of a whole micro-batch in one compiled kernel, without padding or a dense mask."""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from levelhead.policy.backends.base import TREES, Decoder, MakeDecoder, PolicyLike
from levelhead.policy.backends.converted import Converted
from levelhead.policy.backends.sdpa import PaddedDecoder, Sdpa
from levelhead.policy.backends.trees import TREE_TOLERANCE, attend_over_trees, exactly, tree_states
from levelhead.policy.packing import MicroBatch, Node, TokenSequence, pack
from levelhead.records import Prompt

if TYPE_CHECKING:
    from levelhead.policy.backends.flex.attention import Kernel, Masks
    from levelhead.policy.backends.flex.decoder import Graphs

_log = logging.getLogger(__name__)

_KINDS = {"full_attention", "sliding_attention"}
"""Kinds of layers that can read a packed tree."""


class Flex:
    """The :class:`~levelhead.policy.backends.base.Backend` of PyTorch's FlexAttention.

    Made for CUDA.  On a CPU it computes the same in plain torch, slowly, so that it can be tested there.

    What the architecture does is not assumed but compared, on the model at hand: attention over trees with the
    reference's when the backend is chosen, gradients of the kernel with them.
    """

    name = "flex"

    def __init__(self) -> None:
        self.block = 128
        """Tokens of a block of the mask."""
        self.decodes: str | None = None
        """Why rollouts are sampled with transformers' own cache; ``None`` where they are not, and before a trial."""
        self._padded = Sdpa()
        self._graphs: Graphs | None = None
        self._kernels: dict[torch.dtype, Kernel] = {}
        self._masks: tuple[tuple[Node, ...], tuple[Any, ...], Masks] | None = None

    @classmethod
    def supports(cls, policy: PolicyLike) -> str | None:
        """Return why flex attention cannot run a policy's model here; ``None`` where it can."""
        if policy.device.type not in ("cuda", "cpu"):
            return f"the model is on {policy.device.type}"
        if importlib.util.find_spec("torch.nn.attention.flex_attention") is None:
            return f"torch {torch.__version__} has no flex attention"
        config = policy.base.config
        if config._attn_implementation not in ("sdpa", TREES):
            return f"the model was loaded with {config._attn_implementation} attention"
        if getattr(policy.base, "_is_stateful", False):
            return "the model is recurrent, and a state cannot branch"
        try:
            windows = layer_windows(config)
        except (AttributeError, ValueError) as error:
            return str(error)
        narrowest = min((window for window in windows if window is not None), default=None)
        return kernel_fault(policy, windows) or attend_over_trees(policy, cls().hidden, narrowest)

    def pack(self, policy: PolicyLike, sequences: Sequence[TokenSequence], tokens: int) -> list[MicroBatch]:
        """See :class:`~levelhead.policy.backends.base.Backend`; with dropout in attention, rows are padded."""
        if policy.drops_attention:
            return self._padded.pack(policy, sequences, tokens)
        return pack(sequences, tokens=tokens, pad_id=policy.codec.pad_id, flat=True)

    def shares(self, policy: PolicyLike) -> bool:
        """Whether packed sequences of a prefix group share their prefixes, each computed once."""
        return self._padded.shares(policy) if policy.drops_attention else True

    def hidden(self, policy: PolicyLike, model: Any, batch: MicroBatch) -> Tensor:
        """Return the needed hidden states, with prefix trees under a block mask.

        Raises:
            RuntimeError: Not every layer of the model looked at the tree.
        """
        from levelhead.policy.backends.flex.attention import Trees

        if not batch.nodes:
            return self._padded.hidden(policy, model, batch)
        return tree_states(policy, model, batch, Trees(self._masks_of(model, batch), self.kernel(policy)))

    def decoders(self, policy: PolicyLike) -> MakeDecoder:
        """See :class:`~levelhead.policy.backends.base.Backend`; the first time, both ways to decode are compared."""
        from levelhead.policy.backends.flex.decoder import Graphs, StaticDecoder

        if self._graphs is None:
            self._graphs = Graphs()
            self.decodes = decoder_fault(policy, self.kernel(policy), self._graphs)
            if self.decodes is not None:
                _log.warning(
                    "%s is sampled with transformers' own cache (%s)", type(policy.base).__name__, self.decodes
                )
        if self.decodes is not None:
            return self._padded.decoders(policy)
        windows = layer_windows(policy.base.config)
        return functools.partial(StaticDecoder, policy, Converted(policy), windows, self.kernel(policy), self._graphs)

    def kernel(self, policy: PolicyLike) -> Kernel:
        """What computes attention in the policy's compute type; the first time, the compiled kernel is tried in it.

        A policy may have a copy that computes without rounding, in float32, for which a GPU that runs the kernel in
        bf16 may have no room.
        """
        from levelhead.policy.backends.flex.attention import by_blocks, compiled

        if policy.device.type != "cuda":
            return by_blocks
        dtype = policy.compute_dtype
        if dtype not in self._kernels:
            fault = kernel_fault(policy, layer_windows(policy.base.config))
            if fault is not None:
                _log.warning(
                    "attention in %s runs block by block, slowly: %s", str(dtype).removeprefix("torch."), fault
                )
            self._kernels[dtype] = compiled() if fault is None else by_blocks
        return self._kernels[dtype]

    def _masks_of(self, model: Any, batch: MicroBatch) -> Masks:
        """The masks of a micro-batch, which its passes through policy and reference share."""
        from levelhead.policy.backends.flex.attention import Masks

        assert batch.position_ids is not None  # noqa: S101 - a row with nodes has depths
        # Tensors that were made in inference mode cannot be part of a backward pass.
        place = (batch.input_ids.device, torch.is_inference_mode_enabled())
        last = self._masks
        if last is None or last[0] is not batch.nodes or last[1] != place:
            masks = Masks(batch.nodes, batch.position_ids[0], layer_windows(model.config), self.block)
            self._masks = last = (batch.nodes, place, masks)
        return last[2]


def layer_windows(config: Any) -> tuple[int | None, ...]:
    """How many tokens each layer of a model looks back, itself included; ``None`` for all.

    Raises:
        ValueError: A layer is of a kind that cannot read a packed tree, such as a convolution or a recurrence, whose
            state goes from each token to its neighbour in the row.
    """
    layers: int = config.num_hidden_layers
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return (window if getattr(config, "use_sliding_window", True) else None,) * layers
    odd = sorted(set(kinds) - _KINDS)
    if odd:
        raise ValueError(f"it has layers of kind {', '.join(odd)}, which cannot read a packed tree")
    if "sliding_attention" in kinds and window is None:
        raise ValueError("it has layers with a sliding window of unknown width")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def kernel_fault(policy: PolicyLike, windows: Sequence[int | None]) -> str | None:
    """Why the compiled kernel does not compute attention at a model's shapes, gradients included.

    Args:
        policy: Of the model.
        windows: Of its layers.

    Returns:
        A few words; ``None`` where it does, and where nothing is compiled.
    """
    from levelhead.policy.backends.flex.attention import by_blocks, compiled

    if policy.device.type != "cuda":
        return None
    try:
        for window in sorted(set(windows), key=str):
            gap = kernel_gap(compiled(), by_blocks, policy, window)
            if gap > TREE_TOLERANCE["exact" if exactly(policy) else "rounded"]:
                return f"the compiled kernel differs by {gap:.2g} (window {window})"
    except Exception as error:  # what a compiler raises is of any kind
        return f"the kernel does not compile: {str(error).strip().partition(chr(10))[0]}"
    return None


@torch.inference_mode(False)
@torch.enable_grad()
def kernel_gap(one: Kernel, other: Kernel, policy: PolicyLike, window: int | None) -> float:
    """Largest relative distance of two kernels, in outputs and gradients, on a small tree at a model's shapes."""
    from levelhead.policy.backends.flex.attention import Masks

    config = policy.base.config
    heads, kv_heads = config.num_attention_heads, getattr(config, "num_key_value_heads", config.num_attention_heads)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    nodes = (Node(0, 90, 256), Node(90, 150, 150), Node(150, 256, 256))
    depth = torch.cat([torch.arange(150), torch.arange(90, 196)]).to(policy.device)
    mask = Masks(nodes, depth, (window,)).of(0)
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, n, len(depth), width) for n in (heads, kv_heads, kv_heads, heads)]
    *given, pull = (torch.randn(x, generator=generator).to(policy.device, policy.compute_dtype) for x in shapes)
    sides: list[list[Tensor]] = []
    for attend in (one, other):
        leaves = [x.clone().requires_grad_() for x in given]
        out = attend(leaves[0], leaves[1], leaves[2], mask, width**-0.5)
        sides.append([out.detach(), *torch.autograd.grad(out, leaves, pull)])
    return max(float((a.float() - b.float()).norm() / b.float().norm()) for a, b in zip(*sides, strict=True))


@torch.inference_mode()
def decoder_fault(policy: PolicyLike, kernel: Kernel, graphs: Graphs) -> str | None:
    """Why the decoder of static shapes does not give the logits of transformers' cache; ``None`` where it does."""
    from levelhead.policy.backends.flex.decoder import StaticDecoder

    prompts = [Prompt(str(i), "", (), ids) for i, ids in enumerate([(0, 1, 2), (2, 1), (0, 1, *[1, 2, 0] * 10)])]
    windows = layer_windows(policy.base.config)
    static = StaticDecoder(policy, Converted(policy), windows, kernel, graphs, prompts, 2, 3)
    try:
        ours, own = (_played(decoder, policy.device) for decoder in (static, PaddedDecoder(policy, prompts, 2, 3)))
        gap = float((ours - own).norm() / own.norm())
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        return str(error).strip().partition("\n")[0]
    most = TREE_TOLERANCE["exact" if exactly(policy) else "rounded"]
    return None if gap <= most else f"a decoder of static shapes differs by {gap:.2g}"


def _played(decoder: Decoder, device: torch.device) -> Tensor:
    """All logits of a short decoding of six rows, of which three leave."""
    logits = [decoder.start(), decoder.step(torch.tensor([0, 1, 2, 0, 1, 2], device=device))]
    decoder.keep(torch.tensor([1, 4, 5], device=device))
    logits.append(decoder.step(torch.tensor([2, 1, 0], device=device)))
    return torch.cat(logits)
