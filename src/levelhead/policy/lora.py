"""A low-rank adapter around a model: a fresh one, or the one that a checkpoint holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from levelhead.errors import InputError
from levelhead.policy.checkpointing import has_checkpointing
from levelhead.policy.policy import REFERENCE_ADAPTER
from levelhead.policy.quiet import without_renaming_notices
from levelhead.recipe.model import Lora


def with_adapter(model: PreTrainedModel, lora: Lora, seed: int, folder: Path | None) -> Any:
    """Return a model wrapped by PEFT, in evaluation mode.

    Args:
        model: Without an adapter; on the meta device, the adapter has no weights either.
        lora: Of the recipe.
        seed: Of a fresh adapter's weights.
        folder: Checkpoint of an adapter that has been trained.

    Raises:
        InputError: That adapter was trained on another model.
    """
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    if folder is not None:
        wrapped = _trained_shape(model, folder) if model.device.type == "meta" else _trained_adapter(model, folder)
    else:
        config = LoraConfig(
            r=lora.r,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=lora.target_modules,
            modules_to_save=lora.modules_to_save or None,
            task_type="CAUSAL_LM",
        )
        wrapped = without_renaming_notices(lambda: get_peft_model(model, config))
    if has_checkpointing(model):
        model.enable_input_require_grads()
    wrapped.eval()
    return wrapped


def _trained_adapter(model: PreTrainedModel, folder: Path) -> Any:
    """Put a checkpoint's adapter on a model, and the reference's where there is one.

    Raises:
        InputError: The adapter was trained on another model.
    """
    from peft import PeftModel

    try:
        wrapped: Any = without_renaming_notices(
            lambda: PeftModel.from_pretrained(model, str(folder), is_trainable=True)
        )
        if _has_reference(folder):
            reference = str(folder / REFERENCE_ADAPTER)
            without_renaming_notices(
                lambda: wrapped.load_adapter(reference, adapter_name=REFERENCE_ADAPTER, is_trainable=False)
            )
    except (RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
        raise InputError(f"{folder}: the adapter of another model: {reason}") from None
    return wrapped


def _trained_shape(model: PreTrainedModel, folder: Path) -> Any:
    """The same without weights."""
    from peft import PeftConfig, get_peft_model

    config = PeftConfig.from_pretrained(str(folder))
    config.inference_mode = False
    wrapped: Any = without_renaming_notices(lambda: get_peft_model(model, config))
    if _has_reference(folder):
        reference = PeftConfig.from_pretrained(str(folder / REFERENCE_ADAPTER))
        without_renaming_notices(lambda: wrapped.add_adapter(REFERENCE_ADAPTER, reference))
        for name, weight in wrapped.named_parameters():
            if f".{REFERENCE_ADAPTER}." in name:
                weight.requires_grad_(False)
    return wrapped


def _has_reference(folder: Path) -> bool:
    return (folder / REFERENCE_ADAPTER / "adapter_config.json").is_file()
