"""A run so small that tests can afford many: a policy of a few thousand weights, two tasks of a dozen rows each."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from levelhead.policy.load import load_policy
from levelhead.policy.packing import MicroBatch
from levelhead.policy.policy import Policy
from levelhead.recipe.model import Model

TINY = {
    "hidden_size": 32,
    "layers": 2,
    "heads": 2,
    "kv_heads": 1,
    "intermediate_size": 48,
    "vocab_size": 300,
    "context": 128,
}
TEXTS = tuple(f"question {n}: what is the number {n}? answer: the number is {n}." for n in range(12))
REWARDS = """
def parity(prompts, completions, completion_ids, **columns):
    return [float(sum(ids) % 5) / 4 for ids in completion_ids]


def spread(prompts, completions, completion_ids, **columns):
    return [float(sum(ids) % 7) / 6 - 0.5 for ids in completion_ids]


def same(prompts, completions, completion_ids, **columns):
    return [1.0 for _ in completion_ids]
"""


def tiny_policy(*, seed: int = 0, **model: Any) -> Policy:
    """A policy of the tiny preset; ``model`` overrides keys of the section."""
    return load_policy(Model(preset="tiny", tiny=TINY, dtype="float32", **model), texts=TEXTS, seed=seed)


def rows(n: int = 12, prefix: str = "") -> list[dict[str, str]]:
    return [{"prompt": f"{prefix}question {i}?", "answer": f"the number is {i}."} for i in range(n)]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def recipe(folder: Path, **changes: Any) -> dict[str, Any]:
    """Write data and rewards to a folder and return a recipe of two tasks, SFT and GRPO.

    ``changes`` name dotted keys with ``__`` for the dots; list items are indices.
    """
    write_rows(folder / "one.jsonl", rows())
    write_rows(folder / "two.jsonl", rows(prefix="say: "))
    (folder / "rewards.py").write_text(REWARDS, encoding="utf-8")

    def task(name: str, reward: str) -> dict[str, Any]:
        path, function = str(folder / f"{name}.jsonl"), f"{folder / 'rewards.py'}:{reward}"
        shared = {"kind": "function", "oracle": "answer", "eval_fraction": 0.25}
        return {"name": name, "path": path, "rewards": [function], **shared}

    optimizer = {"learning_rate": 3e-3}
    document: dict[str, Any] = {
        "name": "small",
        "seed": 3,
        "check": False,
        "threads": 1,
        "model": {"preset": "tiny", "tiny": dict(TINY), "dtype": "float32"},
        "tasks": [task("one", "parity"), task("two", "spread")],
        "sft": {"steps": 3, "batch_size": 4, "optimizer": {**optimizer, "warmup_steps": 2, "schedule": "cosine"}},
        "grpo": {
            "steps": 4,
            "batch_size": 12,
            "group_size": 3,
            "updates_per_batch": 2,
            "sampling": {"max_new_tokens": 6},
            "kl": {"coef": 0.05},
            "entropy": {"coef": 0.01},
            "optimizer": {**optimizer, "schedule": "linear"},
            "tokens_per_microbatch": 128,
            "audit": {"first": 1},
        },
        "eval": {"items": 2, "final_items": 2, "sampling": {"max_new_tokens": 4}},
        # On, and content with everything: these updates of an untrained policy are long ones.
        "guard": {"policy": "protect", "max_kl": 1e9},
        "checkpoint": {"every": 1, "keep_last": 2},
        "log": {"rollouts_every": 2, "rollouts": 3},
    }
    document = copy.deepcopy(document)
    for key, value in changes.items():
        put(document, key.split("__"), value)
    return document


def put(tree: Any, path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        index: Any = int(part) if part.isdigit() else part
        if isinstance(tree, dict) and index not in tree:
            tree[index] = {}
        tree = tree[index]
    last: Any = int(path[-1]) if path[-1].isdigit() else path[-1]
    if value is None:
        tree.pop(last)
    else:
        tree[last] = value


def metrics(run: Path) -> list[dict[str, Any]]:
    """Lines of ``metrics.jsonl`` without what differs between two runs of one seed."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if k != "step_time" and not k.startswith("time/")} for line in lines
    ]


def steps(run: Path, stage: str) -> list[dict[str, Any]]:
    return [row for row in metrics(run) if row["stage"] == stage]


def events(run: Path) -> list[dict[str, Any]]:
    path = run / "events.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def same_weights(one: Any, other: Any) -> bool:
    """Whether two models agree to the bit."""
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def alone(policy: Policy, context: Sequence[int], completion: Sequence[int], temperature: float = 1.0) -> Any:
    """Log-probabilities and entropies of one sequence from the full logits of a plain forward pass."""
    ids = torch.tensor([[*context, *completion]], device=policy.device)
    logits = policy.model(input_ids=ids).logits[0, len(context) - 1 : -1] / temperature
    logprobs = logits.log_softmax(-1)
    targets = torch.tensor(completion, device=policy.device)
    return logprobs.gather(-1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


def spread_out(micro: MicroBatch, flat: torch.Tensor) -> dict[int, torch.Tensor]:
    """Values of a micro-batch by the index of their sequence."""
    return dict(zip(micro.indices, torch.split(flat, list(micro.lengths)), strict=True))


@cache
def codec_ids() -> tuple[int, ...]:
    """Ids of the tiny vocabulary that are no special tokens."""
    codec = tiny_policy().codec
    special = set(codec.tokenizer.all_special_ids)
    return tuple(i for i in range(codec.vocab_size) if i not in special)
