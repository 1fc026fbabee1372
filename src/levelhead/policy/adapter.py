"""Linear layers with a low-rank adapter, as one differentiable product.

PEFT computes ``W x + s B A x`` with a pass over the wide output for each of its three parts, forward and backward.
Here the low-rank part is added inside the matrix products, and only what a frozen ``W`` leaves to be known is computed:
with g the output's gradient, ``dx = g W + s (g B) A``, ``dA = s (g B)^T x`` and ``dB = s g^T (A x)``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def join_adapters(model: nn.Module) -> None:
    """Let the plain LoRA layers of a PEFT model compute themselves as one product, where they can.

    Whether a layer can is asked at every call: one active adapter that is nothing but two matrices, without dropout, on
    a frozen linear layer of the same type, outside autocast.  Else, PEFT's own forward runs.
    """
    from peft.tuners.lora import Linear

    joined = _joined(Linear)
    for module in model.modules():
        if type(module) is Linear and type(module.base_layer) is nn.Linear:
            module.__class__ = joined


_CLASSES: dict[type, type] = {}


def _joined(plain: Any) -> type:
    """The subclass of PEFT's layer, made when PEFT is there; it holds no state, so that layers can become one."""
    if plain not in _CLASSES:

        def forward(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            name = None if args or kwargs else _only_adapter(self, x)
            if name is None:
                result: Tensor = plain.forward(self, x, *args, **kwargs)
                return result
            base, low, high = self.base_layer, self.lora_A[name].weight, self.lora_B[name].weight
            return adapted(x, base.weight, base.bias, low, high, float(self.scaling[name]))

        _CLASSES[plain] = type("JoinedLinear", (plain,), {"forward": forward, "__module__": __name__})
    return _CLASSES[plain]


def _only_adapter(layer: Any, x: Tensor) -> str | None:
    """Name of the adapter that alone is active and plain; ``None`` where there is none."""
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    if len(active) != 1 or layer.disable_adapters or layer.merged or layer.fan_in_fan_out:
        return None
    (name,) = active
    base, low, high = layer.base_layer, layer.lora_A[name], layer.lora_B[name]
    weights = (base.weight, low.weight, high.weight)
    dropout = getattr(layer.lora_dropout[name], "p", 0.0) if layer.training else 0.0
    plain = name not in getattr(layer, "lora_variant", {}) and not layer.use_dora.get(name)
    same = all(weight.dtype == x.dtype for weight in weights) and not torch.is_autocast_enabled(x.device.type)
    frozen = not base.weight.requires_grad and (base.bias is None or not base.bias.requires_grad)
    bare = low.bias is None and high.bias is None and not (base._forward_hooks or base._forward_pre_hooks)
    return name if plain and same and frozen and bare and not dropout else None


def adapted_weight(module: nn.Module) -> Tensor:
    """Return the (n, d) weight that a linear layer multiplies by, its active adapters added: W + s B A.

    Differentiable in A and B.  A layer without an adapter gives its own weight, one that PEFT trains in full the copy
    that is active.

    Raises:
        TypeError: The adapter is more than a product of two matrices (DoRA, biases, a layer of another kind).
    """
    layer: Any = module
    if type(module) is nn.Linear:  # and PEFT, which takes a third of a second to import, need not be asked
        return module.weight
    from peft.tuners.lora import Linear
    from peft.tuners.tuners_utils import BaseTunerLayer

    if not isinstance(module, BaseTunerLayer):
        own: Tensor = layer.weight
        return own
    plain = type(layer) is Linear or (_CLASSES and type(layer) in _CLASSES.values())
    if not plain or type(layer.base_layer) is not nn.Linear or layer.merged or layer.fan_in_fan_out:
        raise TypeError(f"a {type(layer).__name__}")
    weight: Tensor = layer.base_layer.weight
    for name in () if layer.disable_adapters else layer.active_adapters:
        if name not in layer.lora_A:
            continue
        low, high = layer.lora_A[name], layer.lora_B[name]
        if (
            name in getattr(layer, "lora_variant", {})
            or layer.use_dora.get(name)
            or low.bias is not None
            or high.bias is not None
        ):
            raise TypeError("an adapter that is more than a product of two matrices")
        scale = float(layer.scaling[name])
        if low.weight.dtype == weight.dtype:
            weight = torch.addmm(weight, high.weight, low.weight, alpha=scale)
        else:
            weight = torch.add(weight, high.weight @ low.weight, alpha=scale)
    return weight


def adapted(x: Tensor, weight: Tensor, bias: Tensor | None, low: Tensor, high: Tensor, scale: float) -> Tensor:
    """``x W^T + b + scale (x A^T) B^T``, differentiable in x, A and B.

    Args:
        x: (..., d) input.
        weight: (n, d) frozen W.
        bias: (n,) frozen b.
        low: (r, d) A.
        high: (n, r) B.
        scale: On the low-rank part.

    Returns:
        (..., n).
    """
    result: Tensor = _Adapted.apply(x, weight, bias, low, high, scale)  # type: ignore[no-untyped-call]
    return result


class _Adapted(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, low: Tensor, high: Tensor, scale: float
    ) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        inner = flat @ low.T
        out = nn.functional.linear(flat, weight, bias).addmm_(inner, high.T, alpha=scale)
        ctx.save_for_backward(x, weight, low, high, inner)
        ctx.scale = scale
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, weight, low, high, inner = ctx.saved_tensors
        flat, grad = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
        needs_x, _, _, needs_low, needs_high, _ = ctx.needs_input_grad
        grad_x = grad_low = grad_high = None
        if needs_high:
            grad_high = (grad.T @ inner).mul_(ctx.scale)
        if needs_x or needs_low:
            grad_inner = (grad @ high).mul_(ctx.scale)
            if needs_low:
                grad_low = grad_inner.T @ flat
            if needs_x:
                grad_x = (grad @ weight).addmm_(grad_inner, low).view(x.shape)
        return grad_x, None, None, grad_low, grad_high, None
