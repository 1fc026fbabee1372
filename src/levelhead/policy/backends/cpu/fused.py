"""One pass of a Llama-like model with as few operators as it takes, for sampling in float32 on a CPU.

A decoding step multiplies few rows, so that what a model's modules do around the products is a good part of its cost.
Here the same weights are used without the modules, and an adapter is merged into a copy of the weights it sits on:
never into those weights themselves, which others may share.  What the architecture does is not assumed but compared, on
the model at hand, with the model's own forward (:meth:`~.backend.Cpu.fused_forward`); where they
differ, and for families that are not listed here, the model's own is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from levelhead.policy.adapter import adapted_weight
from levelhead.policy.backends.base import PolicyLike
from levelhead.policy.backends.cpu import trim
from levelhead.policy.backends.trees import TreeAttention

_log = logging.getLogger(__name__)

_FAMILIES = {"llama", "mistral", "qwen2", "qwen3"}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_FEWEST_ROWS, _FEW_ROWS = 8, 256
"""Rows from and up to which those of an output lie side by side."""
_SMALL, _LARGE = 1 << 16, 1 << 17
"""Weights below which a product stays plain, and from which it may be packed."""
_FEED_FORWARD = {"gate_proj", "up_proj", "down_proj", "act_fn"}


class _UnknownShapeError(TypeError):
    """The model, or a part of it, is not known here."""


@dataclass(frozen=True, slots=True)
class _Norm:
    """Root mean square norm (Zhang and Sennrich 2019, equation 4), in half the operators of torch's own on a CPU."""

    weight: Tensor
    eps: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        mean = torch.addcmul(self.eps, length, length, value=1 / x.shape[-1])
        return (x * mean.rsqrt_()).mul_(self.weight)


class _RotaryEmbedding:
    """Cosine and signed sine with which heads of a position are turned: rotary position embedding.

    Args:
        rotary: The model's module for it.
        like: Of the dtype and device of what is turned.
        scale: On the products of queries and keys; each side carries its root.
    """

    def __init__(self, rotary: Any, like: Tensor, scale: float) -> None:
        self._rotary, self._like = rotary, like
        self._factor = scale**0.5
        kind = str(rotary.rope_type)
        self._changes = "dynamic" in kind or kind == "longrope"  # with the longest position it is asked for
        self._table: tuple[Tensor, Tensor] | None = None

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(n, d) and (n, d), of (n,) positions."""
        if self._changes:
            return self._of(positions)
        last = int(positions.max())
        if self._table is None or last >= len(self._table[0]):
            self._table = self._of(torch.arange(last + 256))
        cos, turn = self._table
        return cos.index_select(0, positions), turn.index_select(0, positions)

    def _of(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = (part[0] * self._factor for part in self._rotary(self._like, positions[None]))
        half = sin.shape[-1] // 2
        return cos, torch.cat([-sin[..., :half], sin[..., half:]], -1)


class _Product:
    """Linear layers of one input side by side.

    Args:
        weights: (outputs, d) each.
        bias: (all outputs,).
    """

    def __init__(self, weights: tuple[Tensor, ...], bias: Tensor | None) -> None:
        self.weights, self.bias = weights, bias
        self._columns = [weight.T for weight in weights]
        self._sizes = [len(weight) for weight in weights]
        self._small = sum(weight.numel() for weight in weights) < _SMALL

    def __call__(self, x: Tensor) -> Tensor:
        """(n, all outputs) of (n, d).

        Of few rows it lies in memory with the rows of an output side by side: written so, a product of few rows is
        shared by threads that would otherwise each do all of it.
        """
        rows = len(x)
        if rows <= _FEWEST_ROWS:
            x = x.contiguous()
        aside = _FEWEST_ROWS < rows <= _FEW_ROWS and not self._small and torch.get_num_threads() > 1
        if len(self.weights) == 1 and not aside:
            return functional.linear(x, self.weights[0], self.bias)
        outputs = sum(self._sizes)
        out = x.new_empty((outputs, rows)).T if aside else x.new_empty((rows, outputs))
        parts = out.split(self._sizes, -1) if len(self.weights) > 1 else (out,)
        for columns, part in zip(self._columns, parts, strict=True):
            torch.mm(x, columns, out=part)
        return out if self.bias is None else out.add_(self.bias)


@dataclass(frozen=True, slots=True)
class _Packed:
    """A linear layer of many outputs, a copy that lies in memory as oneDNN reads it."""

    weight: Tensor
    bias: Tensor | None

    @staticmethod
    def possible() -> bool:
        """Whether torch has the operators here."""
        names = ("_reorder_linear_weight", "_linear_pointwise")
        return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)

    @classmethod
    def of(cls, plain: _Product) -> _Packed:
        """Return a layer with its weights laid out for oneDNN; it gives the same results."""
        return cls(torch.ops.mkldnn._reorder_linear_weight(plain.weights[0], 128), plain.bias)

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return out


@dataclass(frozen=True, slots=True)
class _Layer:
    norm: _Norm
    heads: _Product | _Packed
    head_norm: _Norm | None
    out: _Product
    scale: float
    feed_norm: _Norm
    gate_up: _Product | _Packed
    down: _Product
    activation: Callable[[Tensor], Tensor]


class FusedForward:
    """A model's forward pass on weights as they are now.

    Args:
        policy: Of the model.

    Raises:
        TypeError: The model has parts that are not known here.
    """

    def __init__(self, policy: PolicyLike) -> None:
        model = policy.base
        decoder: Any = model.get_decoder()
        own = type(decoder).__module__.startswith("transformers.models.")
        if not own or model.config.model_type not in _FAMILIES:
            raise _UnknownShapeError(f"model type {model.config.model_type}")
        self._room = policy.merge_bytes
        self.copied = 0
        """Bytes of weights that are copies: with an adapter merged, or laid out anew."""
        self._queries = int(model.config.num_attention_heads)
        self._keys = int(model.config.num_key_value_heads)
        self._width = int(getattr(model.config, "head_dim", None) or decoder.layers[0].self_attn.head_dim)
        self._embedding = _exactly(model.get_input_embeddings(), nn.Embedding).weight
        self._layers = [self._layer(layer) for layer in decoder.layers]
        scales = {layer.scale for layer in self._layers}
        if len(scales) > 1:
            raise _UnknownShapeError(f"layers of different scales {sorted(scales)}")
        self._rotary = _RotaryEmbedding(decoder.rotary_emb, self._embedding, scales.pop())
        self._norm = _norm(decoder.norm)
        self._head = self._packed(model.get_output_embeddings())

    def __call__(self, ids: Tensor, positions: Tensor, trees: TreeAttention, needed: Tensor | None = None) -> Tensor:
        """Return the float32 logits of tokens.

        Args:
            ids: (b, t) tokens.
            positions: (b, t) depth of each.
            trees: Attends, and keeps what is to be kept.
            needed: (n,) flat positions whose logits are asked for; all unless given.

        Returns:
            (n, v), or (b * t, v).
        """
        rows, length = ids.shape
        hidden = functional.embedding(ids.flatten(), self._embedding)
        cos, turn = (part.view(rows, length, 1, -1) for part in self._rotary(positions.flatten()))
        for index, layer in enumerate(self._layers):
            heads = layer.heads(layer.norm(hidden)).contiguous().view(rows, length, -1, self._width)
            turned, value = heads.split([self._queries + self._keys, self._keys], 2)
            if layer.head_norm is not None:
                turned = layer.head_norm(turned)
            turned = torch.addcmul(turned * cos, turned.roll(self._width // 2, -1), turn).transpose(1, 2)
            query, key = turned.split([self._queries, self._keys], 1)
            mixed = trees.attend(index, query, key, value.transpose(1, 2), 1.0)
            mixed = mixed.transpose(1, 2).reshape(len(hidden), -1)
            if needed is not None and index + 1 == len(self._layers):
                mixed, hidden = mixed[needed], hidden[needed]
            hidden = hidden + layer.out(mixed)
            gate, up = layer.gate_up(layer.feed_norm(hidden)).chunk(2, -1)
            hidden = hidden + layer.down(layer.activation(gate).mul_(up))
        return self._head(self._norm(hidden))

    def _layer(self, layer: Any) -> _Layer:
        attention, feed_forward = layer.self_attn, layer.mlp
        named = {name for name, _ in attention.named_children()}
        _same(layer, _LAYER)
        _same(feed_forward, _FEED_FORWARD)
        if named - _HEAD_NORMS != _ATTENTION:
            raise _UnknownShapeError(f"attention of {sorted(named)}")
        return _Layer(
            norm=_norm(layer.input_layernorm),
            heads=self._packed(attention.q_proj, attention.k_proj, attention.v_proj),
            head_norm=self._head_norm(attention.q_norm, attention.k_norm) if named & _HEAD_NORMS else None,
            out=self._product(attention.o_proj),
            scale=float(attention.scaling),
            feed_norm=_norm(layer.post_attention_layernorm),
            gate_up=self._packed(feed_forward.gate_proj, feed_forward.up_proj),
            down=self._product(feed_forward.down_proj),
            activation=feed_forward.act_fn,
        )

    def _head_norm(self, queries: Any, keys: Any) -> _Norm:
        """The norm of all query and key heads at once."""
        parts = [(_norm(queries), self._queries), (_norm(keys), self._keys)]
        if parts[0][0].eps != parts[1][0].eps:
            raise _UnknownShapeError("norms of different eps")
        return _Norm(torch.cat([norm.weight.expand(count, -1) for norm, count in parts]), parts[0][0].eps)

    def _product(self, *modules: Any) -> _Product:
        """Return one product of several linear layers, adapters merged."""
        plain = [type(module) is nn.Linear for module in modules]
        layers = [(m.weight, m.bias) if own else _merged(m) for m, own in zip(modules, plain, strict=True)]
        self.copied += sum(_bytes(weight) for (weight, _), own in zip(layers, plain, strict=True) if not own)
        biases = [weight.new_zeros(len(weight)) if bias is None else bias for weight, bias in layers]
        biased = any(bias is not None for _, bias in layers)
        return _Product(tuple(weight for weight, _ in layers), torch.cat(biases) if biased else None)

    def _packed(self, *modules: Any) -> _Product | _Packed:
        """As :meth:`_product`, as one layer and, if it is large, packed, where there is room for the copy."""
        before = self.copied
        plain = self._product(*modules)
        size = before + sum(map(_bytes, plain.weights))
        large = sum(weight.numel() for weight in plain.weights) >= _LARGE and _Packed.possible()
        if size > self._room or not (large or len(plain.weights) > 1):
            return plain
        self.copied = size
        one = _Product((torch.cat(plain.weights),), plain.bias)
        return _Packed.of(one) if large else one


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def expected(policy: PolicyLike) -> bool:
    """Whether a policy, whose model may have no weights, will sample through :func:`make_fused`."""
    exact = policy.compute_dtype == policy.base.dtype == torch.float32
    supported = policy.base.config.model_type in _FAMILIES
    return exact and supported and _adapted_bytes(policy) <= policy.merge_bytes


def reading(policy: PolicyLike, tokens: int) -> int:
    """Return the bytes of a fused pass over the tokens of prompts, with what it keeps for decoding.

    Keys and values are kept as views of all heads, turned and not: of 2 q + 3 kv heads a layer.
    """
    config: Any = policy.base.config
    width = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    queries, keys = width * int(config.num_attention_heads), width * int(config.num_key_value_heads)
    layer = 2 * queries + 3 * keys
    attention = config.num_hidden_layers * layer + config.hidden_size + 3 * queries
    feed_forward = (config.num_hidden_layers - 1) * layer + 2 * config.hidden_size + queries
    return 4 * tokens * int(max(attention, feed_forward + 3 * config.intermediate_size))


def copies(policy: PolicyLike) -> int:
    """Return the bytes of weights that a fused forward will lay out anew, from a model that may have no weights."""
    model: Any = policy.base
    total = 0
    for layer in model.get_decoder().layers:
        attention, feed_forward = layer.self_attn, layer.mlp
        for modules in (
            (attention.q_proj, attention.k_proj, attention.v_proj), (attention.o_proj,),
            (feed_forward.gate_proj, feed_forward.up_proj), (feed_forward.down_proj,),
        ):  # fmt: skip
            total += _copied(modules, total, policy.merge_bytes, packs=len(modules) > 1)
    return total + _copied((model.get_output_embeddings(),), total, policy.merge_bytes, packs=True)


def _copied(modules: tuple[Any, ...], before: int, room: int, *, packs: bool) -> int:
    """Bytes that :meth:`FusedForward._packed`, or :meth:`FusedForward._product`, copies of linear layers."""
    adapted = [hasattr(module, "base_layer") for module in modules]
    weights = [module.base_layer.weight if own else module.weight for module, own in zip(modules, adapted, strict=True)]
    merged = sum(_bytes(weight) for weight, own in zip(weights, adapted, strict=True) if own)
    size = sum(map(_bytes, weights))
    large = sum(weight.numel() for weight in weights) >= _LARGE and _Packed.possible()
    return size if packs and before + size <= room and (large or len(weights) > 1) else merged


def make_fused(policy: PolicyLike) -> FusedForward | None:
    """A fused forward on a policy's weights as they are now; ``None`` where the model's own forward is to be used.

    That is where the policy does not compute in float32 on a CPU, where merging its adapter would take more than
    :attr:`~levelhead.policy.policy.Policy.merge_bytes`, where somebody has hooked into the model's forward, and where
    the model has parts that are not known here.
    """
    exact = policy.compute_dtype == policy.base.dtype == torch.float32 and policy.device.type == "cpu"
    if not exact or _adapted_bytes(policy) > policy.merge_bytes or _hooked(policy.base):
        return None
    try:
        return FusedForward(policy)
    except (_UnknownShapeError, AttributeError) as error:
        _log.info("%s samples through its own modules (%s)", type(policy.base).__name__, error)
        return None


def _hooked(model: nn.Module) -> bool:
    """Whether a module has a hook besides our own and the one with which transformers prepares checkpointing."""
    hooks = [h for m in model.modules() for part in (m._forward_hooks, m._forward_pre_hooks) for h in part.values()]
    names = [(getattr(hook, "__module__", ""), getattr(hook, "__name__", "")) for hook in hooks]
    return any(module != trim.__name__ and name != "make_inputs_require_grads" for module, name in names)


def _adapted_bytes(policy: PolicyLike) -> int:
    """What merged copies of all weights with an adapter would take."""
    if not policy.lora:
        return 0
    modules: Iterable[Any] = policy.base.modules()
    bases = [module.base_layer for module in modules if hasattr(module, "base_layer")]
    return sum(_bytes(weight) for base in bases for weight in base.parameters())


def _merged(module: Any) -> tuple[Tensor, Tensor | None]:
    """The weight that a linear layer with a plain adapter amounts to, as a copy, and its bias."""
    try:
        return adapted_weight(module), module.base_layer.bias
    except (TypeError, AttributeError) as error:
        raise _UnknownShapeError(str(error)) from None


def _norm(module: Any) -> _Norm:
    return _Norm(module.weight, torch.tensor(float(module.variance_epsilon)))


def _exactly(module: Any, kind: type[nn.Module]) -> Any:
    if type(module) is not kind:
        raise _UnknownShapeError(f"a {type(module).__name__}")
    return module


def _same(module: nn.Module, names: set[str]) -> None:
    children = {name for name, _ in module.named_children()}
    if children != names:
        raise _UnknownShapeError(f"a {type(module).__name__} of {sorted(children)}")
