"""Tasks, policies and a short SFT of a few seconds, to begin a run in TRL anywhere between nothing and its ceiling."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Reward = Callable[..., list[float]]
Row = dict[str, str]

SYMBOLS = "0123456789abcdefgh+>=#. "


def tokenizer() -> Any:
    """One token a symbol, and three to begin, end and pad."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", *SYMBOLS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="."))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left"
    )


def policy(words: Any, kind: str, seed: int, width: int = 64) -> Any:
    """Two narrow layers with random weights: ``llama``, ``qwen2``, ``gpt_neox`` or ``gpt2``."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    ids = {"pad_token_id": words.pad_token_id, "bos_token_id": words.bos_token_id, "eos_token_id": words.eos_token_id}
    if kind == "gpt2":
        shape: dict[str, Any] = {
            "n_embd": width, "n_layer": 2, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        }  # fmt: skip
    else:
        shape = {
            "hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2, "num_attention_heads": 4,
            "max_position_embeddings": 64,
        }  # fmt: skip
        if kind != "gpt_neox":
            shape["num_key_value_heads"] = 2
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=len(words), **shape, **ids))


@dataclass(frozen=True, slots=True)
class Task:
    """Rows with ``prompt`` and the ``answer`` that SFT shows, and how answers are rewarded."""

    rows: tuple[Row, ...]
    rewards: tuple[Reward, ...]
    weights: tuple[float, ...] = (1.0,)


def right(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """1 for the answer and nothing else."""
    return [float(text == wanted) for text, wanted in zip(completions, answer, strict=True)]


def sums() -> Task:
    """Sums of two numbers up to 11."""
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(12) for b in range(12)]
    return Task(tuple(rows), (right,))


def turned_words(letters: int = 3) -> Task:
    """A word of the first six letters, backwards."""
    rng = random.Random(0)
    words = {"".join(rng.choices("abcdef", k=letters)) for _ in range(200)}
    return Task(tuple({"prompt": f"{word}>", "answer": word[::-1]} for word in sorted(words)), (right,))


def largest() -> Task:
    """The largest of three digits."""
    rng = random.Random(0)
    numbers = {"".join(rng.choices("0123456789", k=3)) for _ in range(200)}
    return Task(tuple({"prompt": f"{digits}>", "answer": max(digits)} for digits in sorted(numbers)), (right,))


def sft(model: Any, words: Any, task: Task, until: float, seed: int, most: int = 2000) -> float:
    """Train on the answers until the policy draws them with a mean chance of ``until``; return that chance."""
    import torch

    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    chance = 0.0
    for step in range(most):
        if step % 10 == 0:
            with torch.no_grad():
                chance = float(_log_chance(model, words, task.rows).exp().mean())
            if chance >= until:
                break
        optimizer.zero_grad()
        (-_log_chance(model, words, rng.choices(task.rows, k=64)).mean()).backward()
        optimizer.step()
    return chance


def _log_chance(model: Any, words: Any, rows: Sequence[Row]) -> Any:
    """Log-probability of each row's answer and its end."""
    import torch

    prompts = [words.encode(row["prompt"], add_special_tokens=False) for row in rows]
    answers = [[*words.encode(row["answer"], add_special_tokens=False), words.eos_token_id] for row in rows]
    longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    ids = torch.full((len(rows), longest), words.pad_token_id)
    wanted = torch.zeros((len(rows), longest), dtype=torch.bool)
    present = torch.zeros((len(rows), longest), dtype=torch.long)
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        ids[i, longest - len(prompt) - len(answer) :] = torch.tensor([*prompt, *answer])
        wanted[i, longest - len(answer) :] = True
        present[i, longest - len(prompt) - len(answer) :] = 1
    positions = (present.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=present, position_ids=positions).logits[:, :-1]
    picked = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return (picked * wanted[:, 1:]).sum(1)


def measure(model: Any, words: Any, task: Task, longest: int, seed: int, draws: int = 4) -> float:
    """Mean reward of answers drawn at temperature 1 to 128 of the task's prompts; no trainer has a part in it."""
    import torch

    state = torch.get_rng_state()
    torch.manual_seed(1000 + seed)
    rows = list(task.rows) if len(task.rows) <= 128 else random.Random(seed).sample(task.rows, 128)
    rows = [row for row in rows for _ in range(draws)]
    batch = words([row["prompt"] for row in rows], return_tensors="pt", padding=True, add_special_tokens=False)
    training = model.training
    model.eval()
    with torch.no_grad():
        out = model.generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], do_sample=True, top_k=0,
            max_new_tokens=longest, pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id,
        )  # fmt: skip
    model.train(training)
    torch.set_rng_state(state)
    texts = words.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    prompts = [row["prompt"] for row in rows]
    total = 0.0
    for reward, weight in zip(task.rewards, task.weights, strict=True):
        scores = reward(prompts=prompts, completions=texts, **columns)
        total += weight * sum(scores) / len(scores)
    return total
