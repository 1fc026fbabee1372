"""A whole GRPO run in TRL in seconds: a policy of a few thousand parameters that writes letters."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

LETTERS = "abcdefghij"
WANTED = 4
LONGEST = 12
Reward = Callable[..., list[float]]


def tokenizer() -> Any:
    """One token a letter, and three to begin, end and pad."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", *LETTERS, ":"])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=":"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left"
    )


def policy(words: Any, seed: int) -> Any:
    """A causal model of two narrow layers, not trained."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=words.pad_token_id,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        initializer_range=0.1,
    )
    return LlamaForCausalLM(config)


def four_times(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """1 for the prompt's letter four times and no more: its share of the first four, less a tenth a letter too many."""
    return [
        sum(c == p[0] for c in text[:WANTED]) / WANTED - 0.1 * max(0, len(text) - WANTED)
        for p, text in zip(prompts, completions, strict=True)
    ]


def train(
    folder: Path,
    reward: Reward = four_times,
    *,
    steps: int = 30,
    seed: int = 0,
    callbacks: Sequence[Any] = (),
    change: Callable[[Any, Any], None] = lambda _model, _words: None,
    **settings: Any,
) -> Any:
    """Train and return the trainer.

    Args:
        folder: Output directory.
        reward: Reward function of TRL's signature.
        steps: Optimizer steps.
        seed: Of policy, data and sampling.
        callbacks: For the trainer.
        change: Applied to model and tokenizer beforehand.
        settings: More fields of ``GRPOConfig``.
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    words = tokenizer()
    model = policy(words, seed)
    change(model, words)
    # A KL penalty makes TRL load the reference from where the policy came from.
    model.save_pretrained(folder / "start")
    model.config._name_or_path = str(folder / "start")
    rng = random.Random(seed)
    rows = [{"prompt": rng.choice(LETTERS[:4]) + ":"} for _ in range(64)]
    fields: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 32,
        "num_generations": 8,
        "max_completion_length": LONGEST,
        "max_steps": steps,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "seed": seed,
        "use_cpu": True,
        "disable_tqdm": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        **settings,
    }
    trainer = GRPOTrainer(
        model=model,
        processing_class=words,
        reward_funcs=[reward],
        train_dataset=Dataset.from_list(rows),
        args=GRPOConfig(**fields),
        callbacks=list(callbacks),
    )
    trainer.train()
    return trainer
