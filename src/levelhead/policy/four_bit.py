"""A frozen base in four bits under an adapter, by bitsandbytes: NF4, doubly quantized (Dettmers et al. 2023).

A linear layer's weights lie in blocks of 64 numbers of four bits; a block's scale is a byte, and 256 of these scales
have a float32 of their own.  Products are made of weights that are unpacked to the compute type for the moment.
"""

from __future__ import annotations

import copy
import importlib.util
from typing import Any

import torch
from torch import Tensor, nn

from levelhead.errors import InputError

KEY = "model.lora.load_in_4bit"
"""The recipe's key."""

BLOCK, SCALES = 64, 256
"""Numbers that share a scale, and scales that share one."""


def require(key: str = KEY) -> None:
    """Make sure that bitsandbytes is there.

    Args:
        key: What of the recipe needs it.

    Raises:
        InputError: It is not.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        raise InputError(f"{key}: needs bitsandbytes, which is not installed here; pip install bitsandbytes")


def loading_options(compute: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Return what ``from_pretrained`` is told, so that linear layers are quantized where they will lie.

    Args:
        compute: Type of matrix products.
        device: Where the model goes.
    """
    from transformers import BitsAndBytesConfig

    asked = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
    )
    return {"quantization_config": asked, "device_map": {"": device}}


def keep_layout(model: nn.Module) -> None:
    """Keep weights as they are saved.

    On a CPU with AVX512-BF16 a layer rearranges its weights for good when it is first evaluated; what it then computes
    has no gradient (bitsandbytes 0.50), and a policy is sampled and trained in turns.
    """
    for module in model.modules():
        layer: Any = module
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False


def is_packed(weight: object) -> bool:
    """Whether a weight lies in four bits."""
    return getattr(weight, "quant_state", None) is not None


def unpacked(weight: Tensor) -> Tensor:
    """Return a weight as its layer multiplies by it, unpacked where it lies in four bits."""
    if not is_packed(weight):
        return weight
    from bitsandbytes.functional import dequantize_4bit

    packed: Any = weight
    whole: Tensor = dequantize_4bit(packed.data, packed.quant_state)
    return whole


@torch.no_grad()
def copy_unpacked(packed: nn.Module, whole: nn.Module) -> None:
    """Give a model the numbers that another one of the same architecture multiplies by, where it lies in four bits."""
    theirs = dict(packed.named_parameters())
    for name, weight in whole.named_parameters():
        if is_packed(theirs[name]):
            weight.copy_(unpacked(theirs[name]))


def unpacks_to(weight: Any, dtype: torch.dtype) -> Any:
    """Return the same packed weight, in the same memory, for products in another type."""
    other = copy.copy(weight)
    other.quant_state = copy.copy(weight.quant_state)
    other.quant_state.dtype = dtype
    return other


def compute_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Let the layers in four bits make their products in a type; their weights stay the same numbers."""
    for module in model.modules():
        layer: Any = module
        if hasattr(layer, "compute_type_is_set"):
            layer.compute_dtype, layer.compute_type_is_set = dtype, True


def packed_bytes(numbers: int) -> int:
    """Return the bytes of a weight of so many numbers in four bits, scales included."""
    blocks = -(-numbers // BLOCK)
    return -(-numbers // 2) + blocks + 4 * -(-blocks // SCALES)


class Planned(nn.Linear):
    """A linear layer as a plan sees it: whole numbers that stand for packed ones, unpacked for each product."""

    def forward(self, x: Tensor) -> Tensor:
        """As the layer, and allocates what it does."""
        out: Tensor = _Unpacking.apply(x, self.weight)  # type: ignore[no-untyped-call]
        bias: Tensor | None = self.bias
        return out if bias is None else out + bias


class _Unpacking(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return x @ torch.empty_like(weight).T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return grads[0] @ torch.empty_like(weight), None


def stand_in(model: Any) -> None:
    """Let the linear layers of a model without weights take the place of those that would be packed.

    All are packed but the output layer, as transformers does it.
    """
    head = model.get_output_embeddings()
    for module in model.modules():
        if type(module) is nn.Linear and module is not head:
            module.__class__ = Planned


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's weights and buffers, where stand-ins are as small as what they stand for."""
    packed = {id(m.weight) for m in model.modules() if type(m) is Planned}
    tensors = [*model.parameters(), *model.buffers()]
    return sum(packed_bytes(t.numel()) if id(t) in packed else t.numel() * t.element_size() for t in tensors)
