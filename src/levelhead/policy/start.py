"""What ``model.name`` holds: whole weights, or an adapter over those of another model."""

from __future__ import annotations

import functools
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelhead.errors import InputError
from levelhead.policy import hub, manifest
from levelhead.recipe.model import Lora, Model

ADAPTER_CONFIG = "adapter_config.json"
"""Name of the file that every adapter of PEFT has."""
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""Names of the files that hold weights."""
_CHAIN = 8
"""Adapters over adapters that are followed."""
_PROMPTS = {
    "PROMPT_TUNING",
    "MULTITASK_PROMPT_TUNING",
    "P_TUNING",
    "PREFIX_TUNING",
    "CPT",
    "ADAPTION_PROMPT",
    "CARTRIDGE",
}
"""Kinds of adapters that put something before the tokens, and are no change of weights."""
_PLAIN_STARTS = {"true", "false", "gaussian", "orthogonal"}
"""Initial weights of an adapter that leave its base as it is."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """A folder, or a name and revision on the hub."""

    name: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """What a policy begins as.

    Attributes:
        base: Whole weights.
        merged: Adapters that are merged into them, in this order.
        continued: The adapter over all of these that is trained on.
        key: Where a recipe or an adapter names the base, for messages.
    """

    base: Source
    merged: tuple[Source, ...] = ()
    continued: Source | None = None
    key: str = "model.name"


def find_start(section: Model) -> Start:
    """Return what a recipe's model begins as; reads the configs of adapters, and no weights.

    An adapter of the rank that the recipe asks for is trained on, as it is: scale, modules and dropout are its own.
    Any other is merged into its base, over which the recipe trains a second one, or all weights.

    Args:
        section: The recipe's ``model``, a preset other than ``tiny`` or a name.

    Raises:
        InputError: There is no model, or an adapter that cannot be trained on or merged.
    """
    source, key = Source(str(section.source), section.revision), "model.name"
    _refuse_run(source.name)
    chain: list[tuple[Source, dict[str, Any]]] = []
    while (config := read_adapter(source)) is not None:
        _refuse_kind(source, config)
        chain.insert(0, (source, config))
        base = config.get("base_model_name_or_path")
        key = f"{source.name}/{ADAPTER_CONFIG}: base_model_name_or_path"
        if not base:
            raise InputError(
                f"{key}: names no base, so that the adapter cannot be loaded; begin with a folder of whole weights "
                "(levelhead export RUN --merge writes one)"
            )
        if len(chain) > _CHAIN:
            raise InputError(f"{key}: more than {_CHAIN} adapters one over the other")
        source = Source(str(base), config.get("revision"))
    if not chain:
        return Start(source)
    last, config = chain[-1]
    before = tuple(each for each, _ in chain[:-1])
    if section.lora is not None and _continues(config, section.lora):
        return Start(source, before, last, key)
    return Start(source, (*before, last), None, key)


def read_adapter(source: Source) -> dict[str, Any] | None:
    """Return the config of an adapter, ``None`` where a folder or a name on the hub holds none.

    Raises:
        InputError: The config cannot be read, or whole weights lie beside it.
    """
    folder = Path(source.name).expanduser()
    path = folder / ADAPTER_CONFIG if folder.is_dir() else _of_the_hub(source)
    if path is None or not path.is_file():
        return None
    if folder.is_dir():
        files = [file.name for pattern in WEIGHTS for file in folder.glob(pattern)]
        if whole := [name for name in files if not name.startswith("adapter_model")]:
            raise InputError(
                f"model.name: {folder} holds whole weights ({whole[0]}) and an adapter ({ADAPTER_CONFIG}); "
                "move one of them to a folder of its own"
            )
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _ = config["peft_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: cannot be read: {error!r}") from None
    return config


def report(start: Start, lora: Lora | None) -> None:
    """Log what is done with the adapter that a recipe begins with."""
    if start.continued is not None:
        config = read_adapter(start.continued) or {}
        own = {"alpha": config.get("lora_alpha"), "dropout": config.get("lora_dropout", 0.0)}
        asked = {"alpha": getattr(lora, "alpha", None), "dropout": getattr(lora, "dropout", None)}
        notes = [f"{key} {own[key]} (the recipe says {asked[key]})" for key in own if own[key] != asked[key]]
        notes.append(f"modules {_listed(config.get('target_modules'))}")
        _log.warning("model.name: the adapter in %s is trained on, with its %s", start.continued.name, ", ".join(notes))
    elif start.merged:
        then = "all weights are trained" if lora is None else f"a second one of rank {lora.r} is trained"
        names = ", ".join(source.name for source in start.merged)
        _log.warning("model.name: the adapter in %s is merged into %s, and %s", names, start.base.name, then)


def _listed(modules: object) -> str:
    return ", ".join(sorted(map(str, modules))) if isinstance(modules, list) else str(modules)


def _continues(config: dict[str, Any], lora: Lora) -> bool:
    """Whether an adapter is one that :class:`~levelhead.recipe.model.Lora` of the same rank trains."""
    plain = not any(
        config.get(key)
        for key in ("layer_replication", "target_parameters", "trainable_token_indices", "ensure_weight_tying")
    )
    start = str(config.get("init_lora_weights", True)).lower() in _PLAIN_STARTS
    same = config["peft_type"] == "LORA" and config.get("r") == lora.r
    return same and plain and start and config.get("bias", "none") == "none"


def _refuse_kind(source: Source, config: dict[str, Any]) -> None:
    kind = str(config["peft_type"])
    if kind in _PROMPTS or config.get("alora_invocation_tokens") or kind == "XLORA":
        name = "aLoRA" if kind == "LORA" else kind
        raise InputError(
            f"model.name: {source.name} is an adapter of kind {name}, which is no change of the model's weights and "
            "cannot be trained on here; begin with its base model or a LoRA adapter"
        )


def _refuse_run(name: str) -> None:
    """Refuse a folder that holds models, and is none."""
    folder = Path(name).expanduser()
    if not folder.is_dir() or any((folder / file).is_file() for file in ("config.json", ADAPTER_CONFIG)):
        return
    root = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
    inside = sorted(
        path for path in root.iterdir() if any((path / file).is_file() for file in ("config.json", ADAPTER_CONFIG))
    )
    if inside:
        what = "a run" if root != folder else "a folder of models"
        names = ", ".join(str(path) for path in inside[-4:])
        raise InputError(f"model.name: {name} is {what}; name one of the models in it: {names}")


@functools.cache
def _of_the_hub(source: Source) -> Path | None:
    """The adapter's config in the cache, fetched where the hub has one."""
    from transformers.utils.peft_utils import find_adapter_config_file

    with hub.without_waiting(source.name):
        try:
            path = find_adapter_config_file(source.name, revision=source.revision)
        except (OSError, ValueError):
            return None
    return None if path is None else Path(path)


def check_base(section: Model, model: Any, folder: Path) -> None:
    """Refuse a checkpoint's adapter of a base other than the recipe's, where both folders are there to tell."""
    config = read_adapter(Source(str(folder))) or {}
    then, now = (Path(str(name)).expanduser() for name in (config.get("base_model_name_or_path"), model.name_or_path))
    if section.preset is None and then.is_dir() and now.is_dir() and not _same_files(then, now):
        raise InputError(f"{folder}: an adapter of {then}; the recipe's model.name is {now}")


def _same_files(one: Path, other: Path) -> bool:
    """Whether two folders hold the same weights, to the byte."""
    sums = [
        sorted(manifest.sha256(path) for pattern in WEIGHTS for path in folder.glob(pattern)) for folder in (one, other)
    ]
    return one.samefile(other) or sums[0] == sums[1]


def complete(loaded: Any) -> Any:
    """A model all of whose weights were in its files, and whose files held nothing of an adapter.

    Raises:
        ValueError: Some were not, and would be random.
    """
    model, notes = loaded
    if lacking := sorted(notes["missing_keys"]):
        raise ValueError(f"{len(lacking)} of its weights are not in its files, such as {lacking[0]}")
    if adapters := sorted(key for key in notes["unexpected_keys"] if ".lora_" in key):
        raise ValueError(f"its files hold an adapter that is not merged ({adapters[0]}); merge it, or save it alone")
    return model


def tokenizer_of(start: Start) -> Source:
    """Where a model's tokenizer is: beside its adapter, as a checkpoint has it, or beside its base."""
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    adapter = start.continued or (start.merged[-1] if start.merged else None)
    if adapter is None:
        return start.base
    try:
        return adapter if get_tokenizer_config(adapter.name, revision=adapter.revision) else start.base
    except (OSError, ValueError):
        return start.base


def base_eos(section: Model) -> list[int]:
    """Ids that end generation of a recipe's base model."""
    return [] if section.preset == "tiny" else generation_eos(find_start(section).base)


def generation_eos(source: Source) -> list[int]:
    """Ids that end generation as a model's generation config lists them; none where it has no such file."""
    from transformers import GenerationConfig

    try:
        with hub.without_waiting(source.name):
            config = GenerationConfig.from_pretrained(source.name, revision=source.revision or "main")
    except (OSError, ValueError):
        return []
    eos = config.eos_token_id
    return [eos] if isinstance(eos, int) else list(eos or ())


def check_shape(section: Model, model: Any, folder: Path) -> None:
    """Refuse a checkpoint of a model other than the recipe's."""
    from transformers import AutoConfig

    if section.preset == "tiny":
        wanted: dict[str, Any] = {"hidden_size": section.tiny.hidden_size, "num_hidden_layers": section.tiny.layers}
        source = "model.tiny"
    else:
        base = find_start(section).base
        name = base.name
        try:
            with hub.without_waiting(name):
                config = AutoConfig.from_pretrained(
                    name, revision=base.revision, trust_remote_code=section.trust_remote_code
                )
        except (OSError, ValueError):
            return  # the checkpoint holds all that is needed; its fingerprint has been written with it
        keys = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")
        wanted = {key: getattr(config, key, None) for key in keys}
        source = f"model.name {name}"
    for key, expected in wanted.items():
        value = getattr(model.config, key, None)
        if value != expected:
            raise InputError(
                f"{folder}: a checkpoint of another model: {key} is {value}, the recipe's {source} gives {expected}"
            )
