"""PrefixCache of a policy's passes, told without weights: the model runs on tensors that have a size and no content.

Torch's fake tensors go through the model's own modules, through autocast, adapters and gradient checkpointing, and
every storage that lives is counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import DynamicCache

from levelhead.policy.allocation import INPUTS, Layout, LiveBytes, Statistics
from levelhead.policy.backends.base import TREES
from levelhead.policy.backends.choose import expected_backend
from levelhead.policy.backends.converted import converted_bytes
from levelhead.policy.backends.cpu import fused
from levelhead.policy.backends.cpu.trim import trim_last_layer
from levelhead.policy.checkpointing import has_checkpointing, set_checkpointing
from levelhead.policy.head import block_shape
from levelhead.policy.load import load_shape
from levelhead.policy.policy import Policy
from levelhead.recipe.model import Model
from levelhead.text.codec import Codec

DEEP = 8
"""Layers up to which all of a model's are run."""


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
        self.policy.runs_on = section.backend
        self.backend = expected_backend(self.policy, device)
        if self.backend != "sdpa":
            self.policy.base.config._attn_implementation = TREES
        if self.backend == "cpu":
            trim_last_layer(self.policy.base.get_decoder())
        self._weights = [*self.policy.model.parameters(), *self.policy.model.buffers()]

    @property
    def laid_out(self) -> int:
        """Bytes of weights that are copied for sampling."""
        if self.backend == "cpu" and fused.expected(self.policy):
            return fused.copies(self.policy)
        return converted_bytes(self.policy) if self.backend in ("cpu", "flex") else 0

    @property
    def head(self) -> nn.Linear:
        """The output layer, from hidden states (d) to logits (v)."""
        return cast("nn.Linear", self.policy.base.get_output_embeddings())

    def update(self, layout: Layout, *, gradients: bool, backwards: int, checkpointing: bool) -> int:
        """Return the bytes that the passes over a micro-batch take at most, above weights and gradients.

        Of a deep model two and three layers are run, and a layer more takes what the third one took.

        Args:
            layout: Shape of the micro-batch.
            gradients: Whether all gradients lie there before it, as they do from the second micro-batch on.
            backwards: Backward passes through one forward pass.
            checkpointing: Whether activations are computed again.
        """

        def run() -> int:
            return self._update(layout, gradients=gradients, backwards=backwards, checkpointing=checkpointing)

        # Where gradients come up while activations go, the highest sum of both is not linear in the layers.
        return self._by_depth(run) if gradients or self.policy.lora else run()

    def _update(self, layout: Layout, *, gradients: bool, backwards: int, checkpointing: bool) -> int:
        policy, trained = self.policy, self.policy.parameters
        with self._mode, self._checkpointing(checkpointing):
            for parameter in trained:
                parameter.grad = torch.empty_like(parameter) if gradients else None
            zeros = [p.grad for p in trained if p.grad is not None]
            with LiveBytes([*self._weights, *zeros]) as live, policy.training():
                decoder, inputs = policy.base.get_decoder(), INPUTS[self.backend](layout)
                hidden = policy.forward(decoder, use_cache=False, **inputs).last_hidden_state
                targets = hidden.flatten(0, 1)[torch.zeros(layout.targets, dtype=torch.long)]
                del hidden, inputs
                blocks = block_shape(layout.targets, self.device)
                logp = Statistics.apply(targets, self.head.weight, blocks)  # type: ignore[no-untyped-call]
                del targets
                for index in range(backwards):
                    logp.sum().backward(retain_graph=index + 1 < backwards)
            for parameter in trained:
                parameter.grad = None
        peak: int = live.peak
        return peak if gradients else max(0, peak - tensor_bytes(trained))

    def prefill(self, prompts: int, length: int, rows: int) -> int:
        """Return the bytes that reading prompts takes at most, their keys, values and first logits included.

        Args:
            prompts: Different ones.
            length: Tokens of each.
            rows: Completions in all.
        """
        if self.backend == "cpu" and fused.expected(self.policy):
            return fused.reading(self.policy, prompts * length) + 8 * rows * len(self.head.weight)
        return self._by_depth(lambda: self._prefill(prompts, length, rows))

    @torch.no_grad()
    def _prefill(self, prompts: int, length: int, rows: int) -> int:
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
                inputs = INPUTS[self.backend](Layout(prompts, length, True, prompts, prompts), keep=True)
                needed = torch.zeros(prompts, dtype=torch.long)
                output = self.policy.forward(base, use_cache=False, logits_to_keep=needed, **inputs)
                logits = output.logits.float().flatten(0, 1)
            _ = logits[torch.zeros(rows, dtype=torch.long)]
        peak: int = live.peak
        return peak

    def _by_depth(self, run: Callable[[], int]) -> int:
        """What ``run`` measures, from a few layers where all are alike."""
        config: Any = self.policy.base.config
        depth = int(config.num_hidden_layers)
        if depth <= DEEP or len(set(getattr(config, "layer_types", None) or [])) > 1:
            return run()
        with self._layers(2):
            two = run()
        with self._layers(3):
            three = run()
        return three + (three - two) * (depth - 3)

    @contextlib.contextmanager
    def _layers(self, count: int) -> Iterator[None]:
        """Inside, the model has the first layers alone; where the last one is trimmed, it is among them."""
        decoder: Any = self.policy.base.get_decoder()
        config: Any = self.policy.base.config
        whole, depth, kinds = decoder.layers, config.num_hidden_layers, getattr(config, "layer_types", None)
        last = [whole[-1]] if self.backend == "cpu" else []
        decoder.layers = nn.ModuleList([*list(whole)[: count - len(last)], *last])
        config.num_hidden_layers = count
        if kinds is not None:
            config.layer_types = kinds[:count]
        try:
            yield
        finally:
            decoder.layers, config.num_hidden_layers = whole, depth
            if kinds is not None:
                config.layer_types = kinds

    @contextlib.contextmanager
    def _checkpointing(self, on: bool) -> Iterator[None]:
        """Switch gradient checkpointing on or off inside, and back behind."""
        base: Any = self.policy.base
        before = has_checkpointing(base)
        _switch(base, on, inputs=self.policy.lora)
        try:
            yield
        finally:
            _switch(base, before, inputs=self.policy.lora)


def _switch(model: Any, on: bool, *, inputs: bool) -> None:
    """Switch gradient checkpointing, and whether ``inputs`` of the first layer need a gradient for it."""
    if has_checkpointing(model) == on:
        return
    set_checkpointing(model, on=on)
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


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes that tensors take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
