"""A low-rank adapter around a model, a fresh one or one that a folder holds; and a model with its adapter merged."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from levelhead.errors import InputError, first_line
from levelhead.policy.adapter import adapted_weight
from levelhead.policy.checkpointing import has_checkpointing
from levelhead.policy.policy import REFERENCE_ADAPTER
from levelhead.policy.quiet import without_library_notices
from levelhead.policy.start import ADAPTER_CONFIG, Source
from levelhead.recipe.model import Lora


def with_adapter(model: PreTrainedModel, lora: Lora, seed: int, source: Source | None) -> Any:
    """Return a model wrapped by PEFT, in evaluation mode.

    Args:
        model: Without an adapter; on the meta device, the adapter has no weights either.
        lora: Of the recipe.
        seed: Of a fresh adapter's weights.
        source: Holds an adapter that has been trained, and is trained on.

    Raises:
        InputError: That adapter was trained on another model, or the recipe names modules that the model lacks.
    """
    torch.manual_seed(seed)
    wrapped = _fresh(model, lora) if source is None else trained_adapter(model, source, trained=True)
    try:
        adapted_weight(wrapped.get_base_model().get_output_embeddings())
    except TypeError as error:
        raise InputError(
            f"model.lora: the output layer has {error}, which is not trained here; begin with another rank to merge it"
        ) from None
    if has_checkpointing(model):
        model.enable_input_require_grads()
    wrapped.eval()
    return wrapped


def check_names(model: nn.Module, lora: Lora) -> None:
    """Check that each module that a recipe's ``model.lora`` names is one of the model's; needs no weights.

    Raises:
        InputError: One is not; the message has its key and the nearest names.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    targets = lora.target_modules
    if isinstance(targets, list):
        for target in targets:
            _check_name(model, "target_modules", target, _named(modules, target), takes=_takes_adapter)
    elif targets != "all-linear":
        try:
            matches = [module for name, module in modules.items() if re.fullmatch(targets, name)]
        except re.error as error:
            raise InputError(f"model.lora.target_modules: {targets!r} is no regular expression: {error}") from None
        _check_name(model, "target_modules", targets, matches, takes=_takes_adapter)
    for saved in lora.modules_to_save:
        _check_name(
            model, "modules_to_save", saved, _named(modules, saved), takes=lambda m: any(True for _ in m.parameters())
        )


def trained_adapter(model: PreTrainedModel, source: Source, *, trained: bool) -> Any:
    """Put an adapter that has been trained on its base; without weights where that is on the meta device.

    Args:
        model: The base.
        source: Holds the adapter.
        trained: Whether it will be trained on.

    Raises:
        InputError: It was trained on another model, or does not have the weights that its config speaks of.
    """
    from peft import PeftConfig, PeftModel, get_peft_model, get_peft_model_state_dict
    from peft.utils.save_and_load import load_peft_weights

    options: dict[str, Any] = {} if source.revision is None else {"revision": source.revision}

    def build() -> Any:
        config = PeftConfig.from_pretrained(source.name, **options)
        config.inference_mode = not trained
        if model.device.type == "meta":
            return get_peft_model(model, config)
        if config.peft_type == "LORA":  # whose keys are all compared below
            warnings.filterwarnings("ignore", "Found missing adapter keys", UserWarning)
        else:
            warnings.filterwarnings("error", "Found missing adapter keys", UserWarning)
        wrapped = PeftModel.from_pretrained(model, source.name, config=config, is_trainable=trained, **options)
        if config.peft_type == "LORA":
            saved = set(load_peft_weights(source.name, device="cpu", **options))
            _same_keys(saved, set(get_peft_model_state_dict(wrapped, save_embedding_layers=False)))
        return wrapped

    try:
        wrapped = without_library_notices(build)
    except (RuntimeError, ValueError, LookupError, TypeError, UserWarning) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
        raise InputError(f"{source.name}: the adapter of another model: {reason}") from None
    return wrapped


def load_reference(wrapped: Any, folder: Path) -> None:
    """Put a checkpoint's reference, where it is an adapter, beside the one that is trained.

    Raises:
        InputError: It was trained on another model.
    """
    from peft import PeftConfig

    path = folder / REFERENCE_ADAPTER
    if not (path / ADAPTER_CONFIG).is_file():
        return
    if wrapped.device.type == "meta":
        config = PeftConfig.from_pretrained(str(path))
        without_library_notices(lambda: wrapped.add_adapter(REFERENCE_ADAPTER, config))
        freeze_reference(wrapped)
        return
    try:
        without_library_notices(
            lambda: wrapped.load_adapter(str(path), adapter_name=REFERENCE_ADAPTER, is_trainable=False)
        )
    except (RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
        raise InputError(f"{path}: the adapter of another model: {reason}") from None


def freeze_reference(wrapped: nn.Module) -> None:
    """Let nobody train the reference's adapter."""
    for name, weight in wrapped.named_parameters():
        if f".{REFERENCE_ADAPTER}." in name:
            weight.requires_grad_(False)


def merged(wrapped: Any) -> PreTrainedModel:
    """Return the model that one with an adapter amounts to, in the memory of that one.

    Where an adapter has changed one of two embeddings that were the same weight, they are two from here on, and the
    config says so: a reader would give both the weight of the first.

    Raises:
        ValueError: The adapter cannot be merged, or gives weights that are not finite.
    """
    base = wrapped.get_base_model()
    outer = base.get_input_embeddings(), base.get_output_embeddings()
    first, last = (_innermost(end) for end in outer)
    parted = first.weight is last.weight and (first, last) != outer
    if parted:
        last.weight = nn.Parameter(last.weight.detach().clone(), requires_grad=False)
    model: PreTrainedModel = without_library_notices(lambda: wrapped.merge_and_unload(safe_merge=True))
    if parted:
        model.config.tie_word_embeddings = model.config.get_text_config().tie_word_embeddings = False
        model.all_tied_weights_keys = {}
    return model


def _fresh(model: PreTrainedModel, lora: Lora) -> Any:
    from peft import LoraConfig, get_peft_model

    check_names(model, lora)
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        modules_to_save=lora.modules_to_save or None,
        task_type="CAUSAL_LM",
    )
    try:
        return without_library_notices(lambda: get_peft_model(model, config))
    except (ValueError, TypeError) as error:
        raise InputError(f"model.lora: {first_line(error)}") from None


def _named(modules: Mapping[str, nn.Module], name: str) -> list[nn.Module]:
    return [module for path, module in modules.items() if path == name or path.endswith(f".{name}")]


def _takes_adapter(module: nn.Module) -> bool:
    return isinstance(weight := getattr(module, "weight", None), Tensor) and weight.dim() > 1


def _check_name(
    model: nn.Module, key: str, name: str, matches: Sequence[nn.Module], *, takes: Callable[[nn.Module], bool]
) -> None:
    """Refuse a name that no module has, or that of one that cannot be trained so, with the nearest ones that can."""
    if matches and all(map(takes, matches)):
        return
    leaves = dict.fromkeys(path.rpartition(".")[2] for path, module in model.named_modules() if path and takes(module))
    can = [leaf for leaf in leaves if not leaf.isdigit()]
    near = difflib.get_close_matches(name.rpartition(".")[2], can, 3, 0.5) or can
    kinds = ", ".join(sorted({type(module).__name__ for module in matches if not takes(module)}))
    wrong = (
        f"is a {kinds}, which cannot be trained so"
        if matches
        else f"is the name of no module of {type(model).__name__}"
    )
    raise InputError(f"model.lora.{key}: {name!r} {wrong}; there are: {', '.join(near)}")


def _same_keys(saved: Collection[str], own: Collection[str]) -> None:
    """Compare the weights of an adapter's file with those that were filled.

    Raises:
        ValueError: They are not the same.
    """
    lacking = sorted(set(own) - set(saved))
    other = sorted(key for key in set(saved) - set(own) if ".lora_" in key or "modules_to_save" in key)
    if lacking:
        raise ValueError(f"{len(lacking)} of its weights are missing, such as {lacking[0]}")
    if other:
        raise ValueError(f"{len(other)} of its weights have no place in the base model, such as {other[0]}")


def _innermost(layer: Any) -> Any:
    """The layer that an adapter, or a copy that is trained, stands around."""
    parts = getattr(layer, "_modules", {})
    for inside in ("base_layer", "original_module", "token_adapter"):
        if parts.get(inside) is not None:
            return _innermost(parts[inside])
    return layer
