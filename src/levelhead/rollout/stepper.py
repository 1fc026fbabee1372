"""One pass of a Llama-like model with as few operators as it takes, for sampling in float32 on a CPU.

A decoding step multiplies few rows, so that what a model's modules do around the products is a good part of its cost.
Here the same weights are used without the modules, and an adapter is merged into a copy of the weights it sits on:
never into those weights themselves, which others may share.  What the architecture does is not assumed but compared, on
the model at hand, with the model's own forward (:func:`levelhead.rollout.decode.find_stepper`); where they differ, and
for families that are not listed here, the model's own is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from levelhead.policy import trim
from levelhead.policy.attention import Branches
from levelhead.policy.policy import Policy

_log = logging.getLogger(__name__)

_FAMILIES = {"llama", "mistral", "qwen2", "qwen3"}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_FEED_FORWARD = {"gate_proj", "up_proj", "down_proj", "act_fn"}


class _UnknownShapeError(TypeError):
    """The model, or a part of it, is not known here."""


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (len(self.weight),), self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class _Product:
    """A linear layer, its adapter merged."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)

    def onto(self, x: Tensor, residual: Tensor) -> Tensor:
        """The product added to the residual stream, (n, d)."""
        found = torch.addmm(residual, x, self.weight.T)
        return found if self.bias is None else found.add_(self.bias)


@dataclass(frozen=True, slots=True)
class _Layer:
    norm: _Norm
    query: _Product
    key: _Product
    value: _Product
    query_norm: _Norm | None
    key_norm: _Norm | None
    out: _Product
    scale: float
    feed_norm: _Norm
    gate: _Product
    up: _Product
    down: _Product
    activation: Callable[[Tensor], Tensor]


class Stepper:
    """A model's forward pass on weights as they are now.

    Args:
        policy: Of the model.

    Raises:
        TypeError: The model has parts that are not known here.
    """

    def __init__(self, policy: Policy) -> None:
        model = policy.base
        decoder: Any = model.get_decoder()
        own = type(decoder).__module__.startswith("transformers.models.")
        if not own or model.config.model_type not in _FAMILIES:
            raise _UnknownShapeError(f"model type {model.config.model_type}")
        self.merged = 0
        """Bytes of merged copies."""
        self._width = int(getattr(model.config, "head_dim", None) or decoder.layers[0].self_attn.head_dim)
        self._embedding = _exactly(model.get_input_embeddings(), nn.Embedding).weight
        self._rotary = decoder.rotary_emb
        self._layers = [self._layer(layer) for layer in decoder.layers]
        self._norm = _norm(decoder.norm)
        self._head = self._product(model.get_output_embeddings())

    def __call__(self, ids: Tensor, positions: Tensor, branches: Branches, needed: Tensor | None = None) -> Tensor:
        """Float32 logits of tokens.

        Args:
            ids: (b, t) tokens.
            positions: (b, t) depth of each.
            branches: Attends, and keeps what is to be kept.
            needed: (n,) flat positions whose logits are asked for; all unless given.

        Returns:
            (n, v), or (b * t, v).
        """
        rows, length = ids.shape
        hidden = functional.embedding(ids, self._embedding)
        cos, sin = (part[:, :, None] for part in self._rotary(hidden, positions))
        half = sin.shape[-1] // 2
        turn = torch.cat([-sin[..., :half], sin[..., half:]], -1)
        hidden = hidden.flatten(0, 1)
        for index, layer in enumerate(self._layers):
            x = layer.norm(hidden)
            query, key, value = (
                part(x).view(rows, length, -1, self._width) for part in (layer.query, layer.key, layer.value)
            )
            if layer.query_norm is not None and layer.key_norm is not None:
                query, key = layer.query_norm(query), layer.key_norm(key)
            turned = [torch.addcmul(part * cos, part.roll(half, -1), turn) for part in (query, key)]
            query, key, value = (part.transpose(1, 2) for part in (*turned, value))
            mixed = branches.attend(index, query, key, value, layer.scale)
            mixed = mixed.transpose(1, 2).reshape(len(hidden), -1)
            if needed is not None and index + 1 == len(self._layers):
                mixed, hidden = mixed[needed], hidden[needed]
            hidden = layer.out.onto(mixed, hidden)
            x = layer.feed_norm(hidden)
            hidden = layer.down.onto(layer.activation(layer.gate(x)).mul_(layer.up(x)), hidden)
        return self._head(self._norm(hidden))

    def _layer(self, layer: Any) -> _Layer:
        attention, feed_forward = layer.self_attn, layer.mlp
        named = {name for name, _ in attention.named_children()}
        _same(layer, _LAYER)
        _same(feed_forward, _FEED_FORWARD)
        if named - _HEAD_NORMS != _ATTENTION:
            raise _UnknownShapeError(f"attention of {sorted(named)}")
        normed = bool(named & _HEAD_NORMS)
        return _Layer(
            norm=_norm(layer.input_layernorm),
            query=self._product(attention.q_proj),
            key=self._product(attention.k_proj),
            value=self._product(attention.v_proj),
            query_norm=_norm(attention.q_norm) if normed else None,
            key_norm=_norm(attention.k_norm) if normed else None,
            out=self._product(attention.o_proj),
            scale=float(attention.scaling),
            feed_norm=_norm(layer.post_attention_layernorm),
            gate=self._product(feed_forward.gate_proj),
            up=self._product(feed_forward.up_proj),
            down=self._product(feed_forward.down_proj),
            activation=feed_forward.act_fn,
        )

    def _product(self, module: Any) -> _Product:
        if type(module) is nn.Linear:
            return _Product(module.weight, module.bias)
        weight, bias = _merged(module)
        self.merged += weight.numel() * weight.element_size()
        return _Product(weight, bias)


def make_stepper(policy: Policy) -> Stepper | None:
    """A stepper on a policy's weights as they are now; ``None`` where the model's own forward is to be used.

    That is where the policy does not compute in float32 on a CPU, where merging its adapter would take more than
    :attr:`~levelhead.policy.policy.Policy.merge_bytes`, where somebody has hooked into the model's forward, and where
    the model has parts that are not known here.
    """
    exact = policy.compute_dtype == policy.base.dtype == torch.float32 and policy.device.type == "cpu"
    if not exact or not policy.branches or _adapted_bytes(policy) > policy.merge_bytes or _hooked(policy.base):
        return None
    try:
        return Stepper(policy)
    except (_UnknownShapeError, AttributeError) as error:
        _log.info("%s samples through its own modules (%s)", type(policy.base).__name__, error)
        return None


def _hooked(model: nn.Module) -> bool:
    """Whether a module has a hook besides our own and the one with which transformers prepares checkpointing."""
    hooks = [h for m in model.modules() for part in (m._forward_hooks, m._forward_pre_hooks) for h in part.values()]
    names = [(getattr(hook, "__module__", ""), getattr(hook, "__name__", "")) for hook in hooks]
    return any(module != trim.__name__ and name != "make_inputs_require_grads" for module, name in names)


def _adapted_bytes(policy: Policy) -> int:
    """What merged copies of all weights with an adapter would take."""
    if not policy.lora:
        return 0
    modules: Iterable[Any] = policy.base.modules()
    bases = [module.base_layer for module in modules if hasattr(module, "base_layer")]
    return sum(weight.numel() * weight.element_size() for base in bases for weight in base.parameters())


def _merged(module: Any) -> tuple[Tensor, Tensor | None]:
    """The weight that a linear layer with a plain adapter amounts to, as a copy, and its bias."""
    from peft.tuners.lora import Linear

    if not isinstance(module, Linear) or type(module.base_layer) is not nn.Linear or module.merged:
        raise _UnknownShapeError(f"a {type(module).__name__}")
    if getattr(module, "fan_in_fan_out", False):
        raise _UnknownShapeError("an adapter of transposed weights")
    weight: Any = module.base_layer.weight
    bias: Any = module.base_layer.bias
    adapters: Any = module
    for name in () if adapters.disable_adapters else adapters.active_adapters:
        if name not in module.lora_A:
            continue
        plain = name not in getattr(module, "lora_variant", {}) and not module.use_dora.get(name)
        if not plain or module.lora_A[name].bias is not None or module.lora_B[name].bias is not None:
            raise _UnknownShapeError("an adapter that is more than a product of two matrices")
        low, high = adapters.lora_A[name].weight, adapters.lora_B[name].weight
        weight = torch.addmm(weight, high, low, alpha=adapters.scaling[name])
    return weight, bias


def _norm(module: Any) -> _Norm:
    return _Norm(module.weight, float(module.variance_epsilon))


def _exactly(module: Any, kind: type[nn.Module]) -> Any:
    if type(module) is not kind:
        raise _UnknownShapeError(f"a {type(module).__name__}")
    return module


def _same(module: nn.Module, names: set[str]) -> None:
    found = {name for name, _ in module.named_children()}
    if found != names:
        raise _UnknownShapeError(f"a {type(module).__name__} of {sorted(found)}")
