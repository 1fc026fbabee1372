"""Memory of a policy's passes, told without weights: the model runs on tensors that have a size and no content.

Torch's fake tensors go through the model's own modules, through autocast, adapters and gradient checkpointing, and
every storage that lives is counted.  What depends on the content of tensors has a stand-in here that allocates the
same: attention over prefix trees, one small function a backend, and the output layer in blocks.
"""

from __future__ import annotations

import contextlib
import math
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache

from levelhead.policy.backends.base import TREES
from levelhead.policy.backends.choose import expected_backend
from levelhead.policy.backends.cpu.attention import unused_mask
from levelhead.policy.backends.cpu.trim import trim_last_layer
from levelhead.policy.head import Blocks, block_shape
from levelhead.policy.load import load_shape
from levelhead.policy.policy import Policy
from levelhead.recipe.model import Model
from levelhead.text.codec import Codec


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape of a micro-batch.

    Attributes:
        rows: Sequences, or prefix trees.
        length: Tokens of each.
        tree: Whether a row is a tree of several sequences.
        targets: Completion tokens that are scored, in all.
        needed: Positions whose last hidden state predicts one of them, in all.
    """

    rows: int
    length: int
    tree: bool
    targets: int
    needed: int

    @property
    def tokens(self) -> int:
        """Tokens that pass through the model at once."""
        return self.rows * self.length


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of storages that are alive, and their highest sum, while operators run inside.

    Args:
        known: Tensors that are not counted.
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {tensor.untyped_storage()._cdata: 0 for tensor in known}
        self._references: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and count what it returns."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self._references[key] = weakref.ref(storage, lambda _, key=key: self._free(key))
        self.now += self._sizes[key]
        self.peak = max(self.peak, self.now)

    def _free(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)
        self._references.pop(key, None)


class _TreeAttention(torch.autograd.Function):
    """What attention over prefix trees allocates: its output, and its denominators' logarithms, which are saved."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads, length = query.shape[1], query.shape[2]
        out = query.new_empty((1, length, heads, value.shape[-1])).transpose(1, 2)
        log = query.new_empty((1, heads, length), dtype=torch.promote_types(query.dtype, torch.float32))
        ctx.save_for_backward(query, key, value, out, log)
        return out

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors[:3])


class _Trees:
    """Stands in for a backend's attention over prefix trees.

    Args:
        needed: Positions that the last layer is asked for; all where the backend does not leave any out.
        repeats: Whether keys and values are repeated for every query head.
        keep: Whether they are kept, layer by layer, for decoding.
    """

    def __init__(self, needed: Tensor | None, *, repeats: bool, keep: bool = False) -> None:
        self.needed = needed
        self._repeats, self._keep = repeats, keep
        self._kept: list[Tensor] = []

    def attend(self, _layer: int, query: Tensor, key: Tensor, value: Tensor, _scale: float) -> Tensor:
        """See :class:`levelhead.policy.backends.cpu.attention.Branches`."""
        if torch.is_autocast_enabled(query.device.type):
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        if self._keep:
            self._kept += [key, value]
        groups = query.shape[1] // key.shape[1]
        if self._repeats and groups > 1:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        result: Tensor = _TreeAttention.apply(query, key, value)  # type: ignore[no-untyped-call]
        return result


def _cpu(layout: Layout, *, keep: bool = False) -> dict[str, Any]:
    """Inputs of a pass on backend ``cpu``: one flat row, keys and values of every query head, a trimmed last layer."""
    needed = torch.zeros(layout.needed, dtype=torch.long)
    return _flat(layout) | {"branches": _Trees(needed, repeats=True, keep=keep)}


def _flex(layout: Layout, *, keep: bool = False) -> dict[str, Any]:
    """Inputs of a pass on backend ``flex``: one flat row under a mask of blocks."""
    return _flat(layout) | {"branches": _Trees(None, repeats=False, keep=keep)}


def _sdpa(layout: Layout, *, keep: bool = False) -> dict[str, Any]:  # noqa: ARG001 - the cache is transformers' own
    """Inputs of a pass on backend ``sdpa``: rows of one length, trees under a dense mask."""
    shape = (layout.rows, layout.length)
    inputs: dict[str, Any] = {"input_ids": torch.zeros(shape, dtype=torch.long)}
    if layout.tree:
        mask = torch.ones((layout.rows, 1, layout.length, layout.length), dtype=torch.bool)
        inputs |= {"position_ids": torch.zeros(shape, dtype=torch.long), "attention_mask": mask}
    return inputs


def _flat(layout: Layout) -> dict[str, Any]:
    ids = torch.zeros((1, layout.tokens), dtype=torch.long)
    return {"input_ids": ids, "position_ids": ids, "attention_mask": unused_mask(ids.device)}


_INPUTS: dict[str, Callable[..., dict[str, Any]]] = {"cpu": _cpu, "flex": _flex, "sdpa": _sdpa}
"""A backend's name to the inputs of its pass over a micro-batch; whoever adds a backend adds a line."""


class _Statistics(torch.autograd.Function):
    """What :func:`levelhead.policy.head.token_statistics` allocates, forward and backward."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, blocks: Blocks) -> Tensor:
        projection = weight.to(hidden.dtype)
        precise = torch.promote_types(hidden.dtype, torch.float32)
        scratch = _scratch(hidden, precise, blocks)
        room, kept = min(blocks.kept, len(hidden) * len(weight)), []
        size = blocks.rows * min(blocks.columns, len(weight))
        while size <= room:
            kept.append(hidden.new_empty(size, dtype=precise))
            room -= size
        ctx.save_for_backward(hidden, weight, *kept)
        ctx.blocks = blocks
        del projection, scratch
        return hidden.new_empty(len(hidden), dtype=precise)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, *kept = ctx.saved_tensors
        projection = weight.to(hidden.dtype)
        precise = torch.promote_types(hidden.dtype, torch.float32)
        scratch = _scratch(hidden, precise, ctx.blocks)
        needs_hidden, needs_weight, _ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden, dtype=precise) if needs_hidden else None
        grad_weight = torch.empty_like(weight, dtype=precise) if needs_weight else None
        del projection, scratch, kept
        both = ((grad_hidden, hidden), (grad_weight, weight))
        return (*(None if grad is None else grad.to(of.dtype) for grad, of in both), None)


def _scratch(hidden: Tensor, precise: torch.dtype, blocks: Blocks) -> list[Tensor]:
    """The memory that block after block is computed in; logits of a coarser type have a float32 copy besides."""
    size = blocks.rows * blocks.columns
    kinds = [hidden.dtype, precise] + ([precise, hidden.dtype] if hidden.dtype != precise else [])
    return [hidden.new_empty(size, dtype=kind) for kind in kinds]


class _NoText:
    """Stands in for a codec: a plan reads no text."""

    pad_id = 0


class Footprints:
    """A recipe's policy without weights, and the memory of its passes.

    Args:
        section: The recipe's ``model``.
        device: Type of the device that is planned for, as ``cpu`` or ``cuda``.
        compute: Type of matrix products there.

    Attributes:
        policy: On fake tensors.
        backend: Name of the one that will run it.

    Raises:
        InputError: The model's config cannot be had.
    """

    def __init__(self, section: Model, device: str, compute: torch.dtype) -> None:
        model = load_shape(section, device, compute)
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        with self._mode:
            model = model.to_empty(device="cpu")
            base = model.get_base_model() if hasattr(model, "peft_config") else model
            base.tie_weights()
            self.policy = Policy(model, cast("Codec", _NoText()), compute)
        if section.lora is not None:
            self.policy.merge_bytes = int(section.lora.merge_gib * 2**30)
        self.device = device
        self.backend = expected_backend(self.policy, device)
        if self.backend != "sdpa":
            self.policy.base.config._attn_implementation = TREES
        if self.backend == "cpu":
            trim_last_layer(self.policy.base.get_decoder())
        self._weights = [*self.policy.model.parameters(), *self.policy.model.buffers()]

    @property
    def head(self) -> nn.Linear:
        """The output layer."""
        return cast("nn.Linear", self.policy.base.get_output_embeddings())

    def update(self, layout: Layout, *, gradients: bool, backwards: int, checkpointing: bool) -> int:
        """Return the bytes that the passes over a micro-batch take at most, above weights and gradients.

        Args:
            layout: Shape of the micro-batch.
            gradients: Whether all gradients lie there before it, as they do from the second micro-batch on.
            backwards: Backward passes through one forward pass.
            checkpointing: Whether activations are computed again.
        """
        policy, trained = self.policy, self.policy.parameters
        with self._mode, self._checkpointing(checkpointing):
            for parameter in trained:
                parameter.grad = torch.empty_like(parameter) if gradients else None
            known = [p.grad for p in trained if p.grad is not None]
            with LiveBytes([*self._weights, *known]) as live, policy.training():
                decoder, inputs = policy.base.get_decoder(), _INPUTS[self.backend](layout)
                hidden = policy.forward(decoder, use_cache=False, **inputs).last_hidden_state
                chosen = hidden.flatten(0, 1)[torch.zeros(layout.targets, dtype=torch.long)]
                del hidden, inputs
                blocks = block_shape(layout.targets, self.device)
                logp = _Statistics.apply(chosen, self.head.weight, blocks)  # type: ignore[no-untyped-call]
                del chosen
                for index in range(backwards):
                    logp.sum().backward(retain_graph=index + 1 < backwards)
            for parameter in trained:
                parameter.grad = None
        return live.peak if gradients else max(0, live.peak - _bytes(trained))

    @torch.no_grad()
    def prefill(self, prompts: int, length: int, rows: int) -> int:
        """Return the bytes that reading prompts takes at most, their keys, values and first logits included.

        Args:
            prompts: Different ones.
            length: Tokens of each.
            rows: Completions in all.
        """
        base = self.policy.base
        with self._mode, LiveBytes(self._weights) as live, self._checkpointing(on=False):
            if self.backend == "sdpa":
                ids, cache = torch.zeros((prompts, length), dtype=torch.long), DynamicCache(config=base.config)
                output = self.policy.forward(
                    base, input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1
                )
                logits = output.logits[:, -1].float()
                cache.reorder_cache(torch.zeros(rows, dtype=torch.long))  # type: ignore[arg-type]
            else:
                inputs = _INPUTS[self.backend](Layout(prompts, length, True, prompts, prompts), keep=True)
                needed = torch.zeros(prompts, dtype=torch.long)
                output = self.policy.forward(base, use_cache=False, logits_to_keep=needed, **inputs)
                logits = output.logits.float().flatten(0, 1)
            _ = logits[torch.zeros(rows, dtype=torch.long)]
        return live.peak

    @contextlib.contextmanager
    def _checkpointing(self, on: bool) -> Iterator[None]:
        """Switch gradient checkpointing inside."""
        base: Any = self.policy.base
        before = bool(base.is_gradient_checkpointing)
        _switch(base, on, inputs=self.policy.lora)
        try:
            yield
        finally:
            _switch(base, before, inputs=self.policy.lora)


def _switch(model: Any, on: bool, *, inputs: bool) -> None:
    """Switch gradient checkpointing, and whether ``inputs`` of the first layer need a gradient for it."""
    if bool(model.is_gradient_checkpointing) == on:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # transformers 5 has another name for it as well
        if on:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            model.gradient_checkpointing_disable()
    if inputs and on:  # as the loaded policy does where the embedding is frozen
        model.enable_input_require_grads()
    elif inputs:
        model.disable_input_require_grads()


def kv_bytes(config: Any, rows: int, length: int, width: int) -> int:
    """Return the bytes of keys and values of rows of so many tokens.

    A layer with a sliding window holds no more than that; convolution and recurrent layers hold none.

    Args:
        config: Of the model.
        rows: Sequences.
        length: Tokens of each.
        width: Bytes of a number.
    """
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    size = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    kinds = list(getattr(config, "layer_types", None) or ["full_attention"] * int(config.num_hidden_layers))
    window = int(getattr(config, "sliding_window", None) or length)
    lengths = [min(length, window) if "sliding" in kind else length for kind in kinds if "attention" in kind]
    return 2 * rows * heads * size * width * sum(lengths)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(math.prod(tensor.shape) * tensor.element_size() for tensor in tensors)
