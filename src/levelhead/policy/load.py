"""From a recipe's ``model`` section, or a checkpoint, to a policy."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
)
from transformers import Qwen2ForCausalLM as TinyForCausalLM
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from levelhead.errors import InputError, first_line
from levelhead.policy import four_bit, hub, manifest
from levelhead.policy.checkpointing import set_checkpointing
from levelhead.policy.device import resolve_device, resolve_dtype
from levelhead.policy.lora import load_reference, merged, trained_adapter, with_adapter
from levelhead.policy.policy import REFERENCE_ADAPTER, Policy
from levelhead.policy.quiet import without_progress_bars
from levelhead.policy.start import (
    ADAPTER_CONFIG,
    Source,
    Start,
    base_eos,
    check_base,
    check_shape,
    complete,
    find_start,
    generation_eos,
    report,
    tokenizer_of,
)
from levelhead.recipe.model import Model
from levelhead.text.codec import Codec
from levelhead.text.fingerprint import difference, verify
from levelhead.text.fingerprint import read as read_fingerprint
from levelhead.text.template import read_chat_template
from levelhead.text.tiny import train_tokenizer

_GENERAL_TOKENIZERS = {"TokenizersBackend", "PreTrainedTokenizerFast"}
CACHE_LINE = 64
"""Bytes of it."""
Load = Literal["whole", "host", "shape"]
"""Where a policy's weights go: to the run's device, to the CPU, or nowhere (the model is on the meta device)."""


def load_policy(section: Model, *, texts: Iterable[str] = (), seed: int = 0, load: Load = "whole") -> Policy:
    """Build the policy that a recipe asks for.

    Args:
        section: The recipe's ``model``.
        texts: The tasks' own text, from which the tiny preset trains its tokenizer.
        seed: Initial weights of the tiny preset and of adapters.
        load: Where the weights go.

    Raises:
        InputError: The model is not there, cannot be loaded, or has no chat template.
    """
    device = resolve_device(section.device)
    compute = resolve_dtype(section.dtype, device, whole=section.lora is None)
    torch.manual_seed(seed)
    continued = None
    if section.preset == "tiny":
        tokenizer = train_tokenizer(texts, section.tiny.vocab_size)
        codec = Codec(tokenizer, chat_template=_template(section), template_kwargs=section.chat_template_kwargs)
        model = _tiny(section, codec, load != "shape")
    else:
        start = find_start(section)
        report(start, section.lora)
        continued = start.continued
        codec = load_codec(section)
        model = _pretrained(section, compute if section.lora else torch.float32, load != "shape")
    model = _placed(section, model, device) if load == "whole" else model
    return _finish(section, model, codec, compute, seed, continued)


def load_shape(section: Model, device: str, compute: torch.dtype) -> Any:
    """Build a recipe's model from its config alone, on the meta device: no weights, no tokenizer.

    The vocabulary of ``preset: tiny``, whose tokenizer is not there yet, is as large as it may become.

    Args:
        section: The recipe's ``model``.
        device: Type of the device that it will run on, as ``cpu`` or ``cuda``.
        compute: Type of matrix products there, and of the frozen weights under an adapter.

    Returns:
        The model, wrapped by PEFT where the recipe has adapters.

    Raises:
        InputError: The config cannot be had, or names no model that transformers knows.
    """
    attention = "sdpa" if device == "cpu" else section.attention
    section = section.model_copy(update={"attention": attention})
    with torch.device("meta"):
        if section.preset == "tiny":
            model: Any = TinyForCausalLM(_tiny_config(section, section.tiny.vocab_size))
        else:
            model = _pretrained(section, compute if section.lora else torch.float32, weights=False)
        if section.gradient_checkpointing:
            set_checkpointing(model, on=True)
        if section.in_four_bits:
            four_bit.stand_in(model)
        continued = None if section.preset == "tiny" else find_start(section).continued
        return model if section.lora is None else with_adapter(model, section.lora, 0, continued)


def load_checkpoint(section: Model, folder: Path, *, seed: int = 0, load: Load = "whole") -> Policy:
    """Build the policy whose weights (or adapter) a checkpoint holds.

    Args:
        section: The recipe's ``model``.
        folder: The checkpoint.
        seed: See :func:`load_policy`.
        load: Where the weights go.

    Raises:
        InputError: The folder is no checkpoint, a damaged one, or one of another model.
    """
    device = resolve_device(section.device)
    compute = resolve_dtype(section.dtype, device, whole=section.lora is None)
    manifest.check(folder)
    adapter = (folder / ADAPTER_CONFIG).is_file()
    if adapter != (section.lora is not None):
        kind = "an adapter" if adapter else "whole weights"
        want = "model.lora set" if adapter else "no model.lora"
        raise InputError(f"{folder}: holds {kind}; the recipe must have {want} to load it")
    if not adapter and not (folder / "config.json").is_file():
        raise InputError(f"{folder}: no model here (neither config.json nor {ADAPTER_CONFIG})")
    codec = load_saved_codec(section, folder)
    if adapter:
        torch.manual_seed(seed)
        whole = load != "shape"
        base = _tiny(section, codec, whole) if section.preset == "tiny" else _pretrained(section, compute, whole)
        check_base(section, base, folder)
        base = _placed(section, base, device) if load == "whole" else base
        policy = _finish(section, base, codec, compute, seed, Source(str(folder)))
        load_reference(policy.model, folder)
        policy.starts_trained = section.preset != "tiny" and find_start(section).continued is not None
        return policy
    try:
        with without_progress_bars():
            model = _of_checkpoint(section, folder, load != "shape")
    except (OSError, ValueError, LookupError, SafetensorError) as error:
        raise InputError(f"{folder}: its weights cannot be loaded: {first_line(error)}") from None
    check_shape(section, model, folder)
    return _finish(section, model.to(device) if load == "whole" else model, codec, compute, seed)


def _of_checkpoint(section: Model, folder: Path, weights: bool) -> Any:
    """The model of a checkpoint's weights, in float32; without weights on the meta device."""
    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": section.attention}
    if weights:
        return AutoModelForCausalLM.from_pretrained(str(folder), **options)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(folder)), **options)


def load_saved_codec(section: Model, folder: Path) -> Codec:
    """Load a checkpoint's tokenizer, which is the one that it was trained with to the token.

    A class that sets up its pre-tokenizer by itself, whatever was saved, gets the saved one.

    Raises:
        InputError: It cannot be loaded, or differs from its fingerprint all the same.
    """
    eos = generation_eos(Source(str(folder))) + base_eos(section)

    def codec_of(tokenizer: Any) -> Codec:
        return Codec(tokenizer, generation_eos=eos, template_kwargs=section.chat_template_kwargs)

    try:
        with without_progress_bars():
            tokenizer = load_tokenizer(str(folder), trust_remote_code=section.trust_remote_code)
    except Exception as error:
        raise InputError(f"{folder}: its tokenizer cannot be loaded: {first_line(error)}") from None
    codec = codec_of(tokenizer)
    saved = read_fingerprint(folder)
    if saved is not None and difference(codec, saved) and (folder / "tokenizer.json").is_file():
        tokenizer._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        codec = codec_of(tokenizer)
    verify(codec, folder)
    return codec


def load_codec(section: Model) -> Codec:
    """Load the tokenizer and chat template of a pretrained model.

    Raises:
        InputError: There is no tokenizer, or it has no chat template.
    """
    source = Source(section.tokenizer, section.revision) if section.tokenizer else tokenizer_of(find_start(section))
    tokenizer = hub.load(
        "model.tokenizer" if section.tokenizer else find_start(section).key,
        source.name,
        without_progress_bars()(
            lambda: load_tokenizer(source.name, source.revision, trust_remote_code=section.trust_remote_code)
        ),
    )
    codec = Codec(
        tokenizer,
        chat_template=_template(section),
        generation_eos=base_eos(section),
        template_kwargs=section.chat_template_kwargs,
    )
    if Path(source.name).is_dir():  # template and stop tokens are for whoever starts a new run from it to choose
        verify(codec, Path(source.name), template=False)
    return codec


def _template(section: Model) -> str | None:
    """Return the chat template of the recipe's own; ``None`` where it is the tokenizer's."""
    return None if section.chat_template is None else read_chat_template(section.chat_template)


def load_tokenizer(source: str, revision: str | None = None, *, trust_remote_code: bool = False) -> Any:
    """Load a tokenizer of the class that saved it.

    ``AutoTokenizer`` takes the class that is usual for the model's architecture instead, which splits some texts
    otherwise, where the saved class is the general one.
    """
    general = get_tokenizer_config(source, revision=revision).get("tokenizer_class") in _GENERAL_TOKENIZERS
    kind = PreTrainedTokenizerFast if general else AutoTokenizer
    return kind.from_pretrained(source, revision=revision or "main", trust_remote_code=trust_remote_code)


def wrap(model: Any, tokenizer: Any, section: Model | None = None, seed: int = 0) -> Policy:
    """Make a policy of a model and tokenizer that the user has already loaded.

    Args:
        model: Where the user put it, in the user's type; one that accelerate has not divided goes to ``model.device``.
        tokenizer: Its tokenizer.
        section: The recipe's ``model``: its adapter, chat template variables and gradient checkpointing hold.
        seed: Of a fresh adapter's weights.
    """
    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    section = section or Model(name=str(getattr(model, "name_or_path", "") or "model"), device=str(model.device))
    codec = Codec(
        tokenizer,
        generation_eos=[eos] if isinstance(eos, int) else list(eos or ()),
        template_kwargs=section.chat_template_kwargs,
    )
    if getattr(model, "hf_device_map", None) is None:
        model = model.to(resolve_device(section.device))
    return _finish(section, model, codec, model.dtype, seed)


def fingerprint(policy: Policy) -> str:
    """Short hash of the architecture and vocabulary, to tell a checkpoint of another model."""
    added = ("lora_", f".{REFERENCE_ADAPTER}.")
    parameters = policy.base.named_parameters()
    shapes = [f"{name}:{tuple(p.shape)}" for name, p in parameters if not any(part in name for part in added)]
    return hashlib.sha256("\n".join([*shapes, str(policy.codec.vocab_size)]).encode()).hexdigest()[:16]


def _finish(
    section: Model, model: PreTrainedModel, codec: Codec, compute: torch.dtype, seed: int, adapter: Source | None = None
) -> Policy:
    """Set up gradient checkpointing and LoRA; ``adapter`` holds one that has been trained."""
    if section.gradient_checkpointing:
        set_checkpointing(model, on=True)
        model.config.use_cache = False
    wrapped: Any = model if section.lora is None else with_adapter(model, section.lora, seed, adapter)
    align(wrapped)
    policy = Policy(wrapped, codec, compute)
    policy.runs_on = section.backend
    policy.starts_trained = adapter is not None
    if section.lora is not None:
        policy.merge_bytes = int(section.lora.merge_gib * 2**30)
    policy.model.eval()
    return policy


def align(model: nn.Module) -> None:
    """Put weights where every cache line begins anew; those read from a file lie where its header ended.

    A CPU's matrix product adds up in another order where they lie otherwise, so that a run that goes on from a
    checkpoint would differ from one that was never interrupted.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.data_ptr() % CACHE_LINE:
            tensor.data = tensor.data.clone()


def _tiny(section: Model, codec: Codec, weights: bool) -> PreTrainedModel:
    with contextlib.nullcontext() if weights else torch.device("meta"):
        return TinyForCausalLM(_tiny_config(section, codec.vocab_size, stop=codec.stop_id, pad=codec.pad_id))


def _tiny_config(section: Model, vocab_size: int, *, stop: int | None = None, pad: int | None = None) -> Qwen2Config:
    shape = section.tiny
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        # The usual 0.02 suits widths in the thousands; a narrow model starts with unit-variance logits instead.
        initializer_range=shape.hidden_size**-0.5,
        bos_token_id=None,
        eos_token_id=stop,
        pad_token_id=pad,
    )
    config._attn_implementation = section.attention
    return config


def _pretrained(section: Model, dtype: torch.dtype, weights: bool) -> PreTrainedModel:
    """The model that a recipe's adapter stands on, or all of whose weights it trains: see :class:`Start`."""
    start = find_start(section)
    if start.merged and section.in_four_bits:
        raise InputError(
            f"{four_bit.KEY}: the adapter in {start.merged[-1].name} cannot be merged into weights of four bits; "
            "merge it first, and name the folder"
        )
    exact = torch.float32 if start.merged else dtype
    model: PreTrainedModel = _whole(section, start, exact, weights)
    for adapter in start.merged:
        wrapped = trained_adapter(model, adapter, trained=False)
        try:
            model = merged(wrapped) if weights else wrapped.unload()
        except (ValueError, NotImplementedError, AttributeError) as error:
            raise InputError(f"model.name: the adapter in {adapter.name} cannot be merged: {error}") from None
        model.requires_grad_(True)
        model.name_or_path = adapter.name
    folder = Path(str(model.name_or_path)).expanduser()
    if folder.is_dir():
        model.name_or_path = str(folder.absolute())
    return model if exact == dtype else nn.Module.to(model, dtype)


def _whole(section: Model, start: Start, dtype: torch.dtype, weights: bool) -> Any:
    """The base, without any adapter."""
    name = start.base.name
    if weights and Path(name).is_dir():
        manifest.check(Path(name), "*.safetensors")
    common: dict[str, Any] = {"revision": start.base.revision, "trust_remote_code": section.trust_remote_code}
    packing: dict[str, Any] = {}
    if weights and section.in_four_bits:
        four_bit.require()
        packing = four_bit.loading_options(dtype, resolve_device(section.device))

    @without_progress_bars()
    def build() -> Any:
        if weights:
            return complete(
                AutoModelForCausalLM.from_pretrained(
                    name,
                    dtype=dtype,
                    attn_implementation=section.attention,
                    output_loading_info=True,
                    **common,
                    **packing,
                )
            )
        config = AutoConfig.from_pretrained(name, **common)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=section.attention, trust_remote_code=section.trust_remote_code
            )

    return hub.load(start.key, name, build)


def _placed(section: Model, model: Any, device: torch.device) -> Any:
    """The model where it runs; what is packed in four bits lies there since it was loaded."""
    if section.in_four_bits:
        four_bit.keep_layout(model)
        return model
    return model.to(device)
