"""The step an optimizer is about to take, as a linear function of the gradient, without taking it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer


@dataclass(frozen=True, slots=True)
class Update:
    """The next change of one parameter: ``scale * grad + sum(rest)``.

    The second moment of Adam is that of the step at hand, held fixed, so that the parts of a gradient add up.

    Attributes:
        scale: Factor of the gradient, a number or shaped like the parameter; negative.
        rest: What does not come from this step's gradient: ``momentum``, ``decay``.
    """

    scale: Tensor | float
    rest: Mapping[str, Tensor] = field(default_factory=dict)


def next_updates(params: Sequence[Tensor], optimizer: Optimizer | None = None) -> Iterator[Update | None]:
    """Yield the next update of each parameter in turn; ``None`` for one that has no gradient and will not move.

    Args:
        params: Parameters with the gradient of the step in ``p.grad``.
        optimizer: SGD, Adam or AdamW, wrapped or not; without one, a plain gradient step of learning rate 1.

    Raises:
        ValueError: If the optimizer is of another kind, maximises, or does not hold a parameter.
    """
    inner = getattr(optimizer, "optimizer", optimizer)
    if inner is not None and not isinstance(inner, (SGD, Adam, AdamW)):
        raise ValueError(f"the audit knows SGD, Adam and AdamW, got {type(inner).__name__}; audit without optimizer")
    groups = {} if inner is None else {id(param): group for group in inner.param_groups for param in group["params"]}
    for param in params:
        if param.grad is None:
            yield None
        elif inner is None:
            yield Update(-1.0)
        elif id(param) not in groups:
            raise ValueError("the optimizer does not hold one of the audited parameters")
        elif groups[id(param)]["maximize"]:
            raise ValueError("an optimizer with maximize=True turns every sign once more; use maximize=False")
        else:
            step = _sgd if isinstance(inner, SGD) else _adam
            yield step(param, param.grad, groups[id(param)], inner.state.get(param, {}), isinstance(inner, AdamW))


def _adam(param: Tensor, grad: Tensor, group: Mapping[str, Any], state: Mapping[str, Any], decoupled: bool) -> Update:
    """Adam with bias correction (Kingma and Ba 2015), weight decay in the gradient or decoupled (AdamW)."""
    (beta1, beta2), rate, decay = group["betas"], float(group["lr"]), group["weight_decay"]
    value, grad = _wide(param), _wide(grad)
    grad = grad if decoupled or not decay else grad + decay * value
    step = float(state.get("step", 0.0)) + 1
    second = beta2 * _wide(state.get("exp_avg_sq", torch.zeros_like(param))) + (1 - beta2) * grad.square()
    if group["amsgrad"]:
        second = torch.maximum(second, _wide(state.get("max_exp_avg_sq", torch.zeros_like(param))))
    denominator = second.sqrt() / math.sqrt(1 - beta2**step) + group["eps"]
    slope = -rate / (1 - beta1**step) / denominator
    rest = {}
    if "exp_avg" in state:
        rest["momentum"] = slope * beta1 * _wide(state["exp_avg"])
    if decay:
        rest["decay"] = -rate * decay * value if decoupled else slope * (1 - beta1) * decay * value
    return Update(slope * (1 - beta1), rest)


def _sgd(param: Tensor, _grad: Tensor, group: Mapping[str, Any], state: Mapping[str, Any], _decoupled: bool) -> Update:
    """SGD with momentum, dampening, Nesterov and weight decay, as torch has them."""
    rate, momentum, decay = float(group["lr"]), group["momentum"], group["weight_decay"]
    previous = state.get("momentum_buffer")
    share = 1.0
    if momentum:
        share = 1.0 if previous is None else 1.0 - group["dampening"]
        share = 1.0 + momentum * share if group["nesterov"] else share
    rest = {}
    if momentum and previous is not None:
        rest["momentum"] = -rate * momentum * (momentum if group["nesterov"] else 1.0) * _wide(previous)
    if decay:
        rest["decay"] = -rate * share * decay * _wide(param)
    return Update(-rate * share, rest)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
