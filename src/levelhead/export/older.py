"""An exported folder as transformers 4 reads it too: names that version 5 has given up, beside those it writes.

Without them version 4 refuses the tokenizer or, worse, turns the heads of a rotary embedding by its default angles.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ROTARY = ("rope_theta", "partial_rotary_factor")
"""Entries of ``rope_parameters`` that version 4 keeps in the config itself."""
_LOCAL = "sliding_attention"


def write_for_older(folder: Path) -> None:
    """Add to a saved model's and tokenizer's configs what transformers 4 looks for; version 5 reads the same as before.

    Args:
        folder: What ``save_pretrained`` wrote; files that are not there are left out.
    """
    _rewrite(folder / "config.json", _model)
    _rewrite(folder / "tokenizer_config.json", _tokenizer)


def _rewrite(path: Path, change: Any) -> None:
    if path.is_file():
        config = json.loads(path.read_text(encoding="utf-8"))
        change(config)
        path.write_text(json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _tokenizer(config: dict[str, Any]) -> None:
    """The general class has one name in both versions; further special tokens are a list under another key."""
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        # By its general class version 4 gives token types as well, which no decoder takes.
        config.setdefault("model_input_names", ["input_ids", "attention_mask"])
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")


def _model(config: dict[str, Any]) -> None:
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        rope = part.get("rope_parameters")
        if isinstance(rope, Mapping):
            _rotary(part, rope)
    if "dtype" in config:
        config.setdefault("torch_dtype", config["dtype"])


def _rotary(part: dict[str, Any], rope: Mapping[str, Any]) -> None:
    """What ``rope_parameters`` says, by the names of before; of two kinds of layers, both."""
    if any(isinstance(value, Mapping) for value in rope.values()):
        local = rope.get(_LOCAL) or {}
        if "rope_theta" in local:
            part.setdefault("rope_local_base_freq", local["rope_theta"])
        rope = rope.get("full_attention") or {}
    for key in _ROTARY:
        if key in rope:
            part.setdefault(key, rope[key])
    scaling = {key: value for key, value in rope.items() if key not in _ROTARY}
    part.setdefault("rope_scaling", scaling if scaling.get("rope_type", "default") != "default" else None)
