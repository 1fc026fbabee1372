"""The workloads, and the model, tokenizer and prompts that both sides load from one folder."""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

PROMPTS = 96
"""Different prompts of a workload; the steps go round them."""


@dataclass(frozen=True)
class Workload:
    """One step: ``groups`` prompts of ``prompt`` tokens, ``k`` answers of exactly ``answer`` tokens to each."""

    name: str
    hidden: int
    layers: int
    vocab: int
    prompt: int
    answer: int
    k: int
    groups: int
    dead: float = 0.0
    """Share of the groups whose answers all get the same reward."""
    lora: int = 0
    """Rank of the adapters; 0 trains all weights."""
    kl: float = 0.0
    """KL coefficient; a reference is kept where it is positive."""
    config: dict[str, Any] = field(default_factory=dict)
    """Of another architecture than the Qwen2 that follows from the numbers above, as in its ``config.json``."""
    weights: str = ""
    """Folder of a real model, whose weights are used; random ones otherwise."""
    dtype: str = "float32"
    """Precision of our matrix products; TRL's setting for bfloat16 is its autocast."""

    @property
    def rows(self) -> int:
        return self.k * self.groups

    @property
    def drawn(self) -> int:
        """Tokens drawn in a step."""
        return self.rows * self.answer


WORKLOADS = {
    w.name: w
    for w in (
        Workload("balanced", 256, 4, 8192, 128, 64, 8, 4),
        Workload("page", 256, 4, 2048, 512, 16, 8, 4),
        Workload("vocabulary", 256, 4, 65536, 128, 64, 8, 2),
        Workload("dead", 256, 4, 8192, 128, 64, 8, 4, dead=0.75),
        Workload("lora", 512, 8, 8192, 256, 64, 8, 2, lora=16, kl=0.04),
    )
}


def real(folder: Path) -> dict[str, Workload]:
    """Workloads of a real model: prompts of 200 tokens, two groups of 8 answers of 64; all weights and LoRA."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    size = (config["hidden_size"], config["num_hidden_layers"], config["vocab_size"], 200, 64, 8, 2)
    more: dict[str, Any] = {"config": config, "weights": str(folder.absolute())}
    return {
        w.name: w
        for w in (
            Workload("real", *size, **more),
            Workload("real-lora", *size, lora=16, **more),
            Workload("real-lora-bf16", *size, lora=16, dtype="bfloat16", **more),
        )
    }


def model_config(workload: Workload) -> Any:
    """The model's config: of the architecture that the workload names, or a Qwen2."""
    from transformers import AutoConfig, Qwen2Config

    tokens = {"vocab_size": workload.vocab, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    if workload.config:
        keys = {key: value for key, value in workload.config.items() if key not in tokens}
        return AutoConfig.for_model(keys.pop("model_type"), **keys, **tokens)
    heads = workload.hidden // 64
    return Qwen2Config(
        hidden_size=workload.hidden,
        intermediate_size=4 * workload.hidden,
        num_hidden_layers=workload.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=workload.hidden**-0.5,
        **tokens,
    )


def tokenizer_of(workload: Workload) -> Any:
    """A tokenizer of as many words as the vocabulary has entries, made without a network."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", *(f"w{i}" for i in range(2, workload.vocab))]
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="w2"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return tokenizer


def write(workload: Workload, folder: Path, *, weights: bool = True) -> None:
    """Write model (or its config alone), tokenizer, prompts and the batch whose gradients are compared."""
    from transformers import AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    if workload.weights:
        model_config(workload).save_pretrained(folder)
        for file in Path(workload.weights).glob("*.safetensors*"):
            (folder / file.name).symlink_to(file)
    elif weights:
        AutoModelForCausalLM.from_config(model_config(workload)).save_pretrained(folder)
    else:
        model_config(workload).save_pretrained(folder)
    tokenizer_of(workload).save_pretrained(folder / "tokenizer")  # beside config.json it would be taken for Qwen2's own
    prompts, batch = examples(workload)
    document = {"workload": asdict(workload), "prompts": prompts, "batch": batch}
    (folder / "bench.json").write_text(json.dumps(document), encoding="utf-8")


def examples(workload: Workload) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """The prompts, and the batch whose gradients are compared."""
    rng = random.Random(0)

    def ids(n: int) -> list[int]:
        return [rng.randrange(2, workload.vocab) for _ in range(n)]

    groups = [{"prompt": ids(workload.prompt), "answers": [ids(workload.answer) for _ in range(workload.k)]}
              for _ in range(workload.groups)]  # fmt: skip
    for index, group in enumerate(groups):
        values = [0.0] * workload.k
        if not dead(workload, index):
            values = [rng.gauss(0, 1) for _ in range(workload.k)]
        mean = sum(values) / len(values)
        group["advantages"] = [value - mean for value in values]
    return [ids(workload.prompt) for _ in range(PROMPTS)], groups


def load(folder: Path) -> tuple[Workload, list[list[int]], list[dict[str, Any]]]:
    """Return the workload, its prompts and the compared batch."""
    document = json.loads((folder / "bench.json").read_text(encoding="utf-8"))
    return Workload(**document["workload"]), document["prompts"], document["batch"]


def text(ids: list[int]) -> str:
    return " ".join(f"w{i}" for i in ids)


def dead(workload: Workload, index: int) -> bool:
    """Whether the answers to a prompt all get the same reward."""
    return index % workload.groups < round(workload.dead * workload.groups)


def reward(ids: list[int] | tuple[int, ...], *, dead: bool) -> float:
    """A reward that differs between random answers, unless the group is dead."""
    return 0.0 if dead else float(sum(ids) % 7) / 6


def fill_adapters(model: torch.nn.Module) -> None:
    """Give every adapter weight, B included, a value that depends on its name alone: both sides train the same ones."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                parameter.normal_(0, 0.02, generator=generator)


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Gradients by the plain name of their parameter, ready to be saved."""
    tensors = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            tensors[name.removeprefix("module.")] = parameter.grad.detach().float().contiguous().clone()
    return tensors
