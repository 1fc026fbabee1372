"""``model``: which policy to train, and how it is loaded."""

from __future__ import annotations

from importlib import resources
from typing import Literal, Self

from pydantic import Field, JsonValue, model_validator

from levelhead.message import Phrase
from levelhead.section import Section


class Lora(Section):
    """Low-rank adapters (Hu et al. 2021) through PEFT; the base weights stay frozen and serve as the reference."""

    r: int = Field(8, ge=1, le=65_536)
    """Rank of the update."""
    alpha: int = Field(16, gt=0)
    """Scale; the update is multiplied by ``alpha / r``."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the adapter's input while training with SFT, but on the output layer's; GRPO always runs without."""
    target_modules: str | list[str] = "all-linear"
    """Names of modules that get an adapter, a regular expression for whole names, or ``all-linear``."""
    modules_to_save: list[str] = Field(default_factory=list)
    """Modules trained in full and saved beside the adapter."""
    merge_gib: float = Field(4.0, ge=0)
    """In float32 on a CPU, rollouts are drawn from copies of weights with the adapter merged, where the adapted weights
    take at most this many GiB; 0 never merges. What is left of it may hold weights laid out anew for drawing."""
    load_in_4bit: bool = False
    """Hold the frozen base in four bits (NF4, doubly quantized), through bitsandbytes where it is installed."""


class TinyModel(Section):
    """Shape of ``preset: tiny``, a Qwen2 architecture trained from scratch."""

    hidden_size: int = Field(192, ge=8, le=65_536)
    """Width of the residual stream."""
    layers: int = Field(4, ge=1, le=1024)
    """Transformer blocks."""
    heads: int = Field(6, ge=1, le=4096)
    """Attention heads."""
    kv_heads: int = Field(2, ge=1, le=4096)
    """Key/value heads (grouped-query attention)."""
    intermediate_size: int = Field(512, ge=8, le=1_048_576)
    """Width of the gated feed-forward block."""
    vocab_size: int = Field(2048, ge=300, le=4_194_304)
    """Upper bound on the byte-level BPE vocabulary trained on the tasks' own text."""
    context: int = Field(1024, ge=32, le=10_000_000)
    """Longest sequence in tokens."""

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        if self.hidden_size % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of heads ({self.heads}), "
                f"and heads a multiple of kv_heads ({self.kv_heads})"
            )
        return self


class Model(Section):
    """The policy: a Hugging Face name or local path, or a preset."""

    name: str | None = None
    """Hugging Face name or local folder of a causal language model, or of an adapter of PEFT over one.  An adapter of
    the rank ``lora.r`` is trained on; any other is merged into its base, over which a new one, or all weights, are
    trained.  Kinds that cannot be merged are refused."""
    preset: Literal["tiny", "base-tiny"] | None = None
    """``tiny`` builds a small policy from a config, with a tokenizer trained on the tasks' text; ``base-tiny`` is the
    small pretrained model that ships with the package (docs/base-tiny.md)."""
    tiny: TinyModel = TinyModel()
    """Shape of the tiny preset."""
    revision: str | None = None
    """Branch, tag or commit of a hub model."""
    tokenizer: str | None = None
    """Tokenizer name or path where it is not the model's own."""
    chat_template: str | None = None
    """Path of a Jinja file, for a model that ships no chat template."""
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    """Variables for the chat template, such as ``enable_thinking: false``; the same in SFT, rollouts and evaluation."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Compute type; ``auto`` is bfloat16 where the hardware multiplies in it, else float32, and float32 on a CPU where
    all weights are trained (docs/precision.md).  Trained weights stay float32, and products round them to this type;
    the frozen base under LoRA is kept in it."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention implementation."""
    backend: Literal["auto", "cpu", "flex", "sdpa"] = "auto"
    """How prefix trees are computed: ``cpu`` piece by piece, ``flex`` in one kernel (made for CUDA; on a CPU slow, for
    tests), ``sdpa`` padded under a dense mask.  ``auto`` is the fastest that supports the model on its device."""
    lora: Lora | None = None
    """Train adapters instead of all weights."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    trust_remote_code: bool = False
    """Run Python code that a hub repository ships.  Off unless you have read that code."""
    device: str = "auto"
    """``auto``, ``cpu``, ``mps``, ``cuda`` or ``cuda:N``; ``auto`` takes an Apple GPU that agrees with the CPU."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.name is None) == (self.preset is None):
            en = "give either model.name (a hub name or local folder) or model.preset: tiny or base-tiny"
            raise ValueError(
                Phrase(en, "请给出 model.name（模型库中的名字或本地文件夹）或 model.preset（tiny 或 base-tiny）之一")
            )
        return self

    @model_validator(mode="after")
    def _four_bits_hold_a_base(self) -> Self:
        if self.preset == "tiny" and self.in_four_bits:
            raise ValueError("lora.load_in_4bit holds a pretrained base in four bits, and preset: tiny has none")
        return self

    @property
    def in_four_bits(self) -> bool:
        """Whether the frozen base lies in four bits."""
        return self.lora is not None and self.lora.load_in_4bit

    @property
    def source(self) -> str | None:
        """Hub name or folder that weights and tokenizer come from; ``None`` for ``preset: tiny``, which has none."""
        return str(resources.files("levelhead") / "models" / "base-tiny") if self.preset == "base-tiny" else self.name
