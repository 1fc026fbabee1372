"""The policies and workloads that ``bench/gpu.py`` times: true shapes, and toys of the same kinds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from speedlib.workloads import Workload

# Keys of the public config.json of Qwen/Qwen2.5-0.5B, LiquidAI/LFM2-350M and meta-llama/Meta-Llama-3-8B.
QWEN2_5_05B: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
LFM2_350M: dict[str, Any] = {
    "model_type": "lfm2",
    "hidden_size": 1024,
    "intermediate_size": 6656,
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "conv_L_cache": 3,
    "layer_types": ["full_attention" if i in (2, 5, 8, 10, 12, 14) else "conv" for i in range(16)],
    "max_position_embeddings": 128000,
    "tie_word_embeddings": True,
}
LLAMA_3_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Shape:
    """A policy, and the workload that it is timed on.

    Attributes:
        work: Prompts, answers, groups, vocabulary, adapter.
        checkpointing: Whether activations are computed again.
        tokens: Of a micro-batch.
    """

    work: Workload
    checkpointing: bool = False
    tokens: int = 16384
    settings: dict[str, Any] = field(default_factory=dict)


def real(name: str, config: dict[str, Any], vocab: int, answer: int, groups: int, **more: Any) -> Workload:
    """Prompts of 512 tokens in groups of 8."""
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    return Workload(name, hidden, layers, vocab, 512, answer, 8, groups, config=config, **more)


SHAPES = (
    Shape(real("Qwen2.5-0.5B full", QWEN2_5_05B, 151936, 128, 8), tokens=12288),
    Shape(real("Llama-3-8B LoRA", LLAMA_3_8B, 128256, 64, 4, lora=16), checkpointing=True, tokens=8192),
    Shape(real("LFM2-350M full", LFM2_350M, 65536, 128, 4), tokens=12288),
)


def small(config: dict[str, Any], layers: int, hidden: int) -> dict[str, Any]:
    """The same architecture, a few layers of it, narrow."""
    changes = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers}
    changes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    if "layer_types" in config:
        changes |= {
            "layer_types": ["conv" if i % 2 == 0 else "full_attention" for i in range(layers)],
            "block_multiple_of": 8,
        }
    return config | changes


def toys(layers: int = 2, hidden: int = 32) -> tuple[Shape, ...]:
    """Each shape as a toy: the same kinds of work, in no time."""
    return tuple(
        Shape(
            Workload(
                f"{shape.work.name} (toy)", hidden, layers, 128, 12, 4, 2, 2,
                lora=min(shape.work.lora, 2), config=small(shape.work.config, layers, hidden),
            ),
            shape.checkpointing,
        )
        for shape in SHAPES
    )  # fmt: skip
