"""Recipes of the conflicting pairs: what is asked, how a policy begins, and what answers are worth."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mergelib import rewards

ROWS = 240
"""Prompts a task; a quarter is held out."""


@dataclass(frozen=True)
class Pair:
    """Two tasks and their data.

    Attributes:
        about: What is in conflict.
        prompts: What each task asks, with a place for a number.
        words: Of the demonstrations, drawn at random: the policy begins with no preference.
    """

    about: str
    prompts: Mapping[str, str]
    words: Sequence[str]


PAIRS = {
    "trade": Pair(
        "the same prompts: naming all four colours takes words, and words cost brevity; no policy has both",
        {"complete": "{n}: name colours", "brief": "{n}: name colours"},
        (*rewards.COLOURS, *rewards.FILLERS),
    ),
    "apart": Pair(
        "prompts that differ in one word ask for opposite answers; a policy that reads it has both",
        {"sea": "{n}: at the sea", "hill": "{n}: at the hill"},
        (*rewards.SEA, *rewards.HILL),
    ),
}


def recipe(
    name: str, folder: Path, seed: int, kind: str, steps: int, changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Write the data of a pair to a folder, and return the recipe of a run on it."""
    pair = PAIRS[name]
    merge = {"kind": kind, **({"monitor_every": 1} if kind == "sum" else {})}
    return {
        "name": f"{name}-{kind}-{seed}",
        "seed": seed,
        "threads": 1,
        "check": False,
        "model": {"preset": "tiny", "tiny": TINY, "dtype": "float32"},
        "tasks": [_task(folder, pair, task, seed) for task in pair.prompts],
        "sft": {"steps": 40, "batch_size": 32, "optimizer": {"learning_rate": 1e-2, "warmup_steps": 4}},
        "grpo": {
            "steps": steps,
            "batch_size": 128,
            "group_size": 8,
            "sampling": {"max_new_tokens": 28},
            "entropy": {"coef": 0.002},
            "merge": merge,
            "audit": {"first": 0},
            "optimizer": {"learning_rate": 2e-3, "betas": [0.9, 0.99], "warmup_steps": 3},
        },
        "guard": {"policy": "off"},
        "eval": {
            "every": 5,
            "items": 60,
            "final_items": 60,
            "constant": False,
            "sampling": {"temperature": 1.0, "max_new_tokens": 28},
            "reference": dict.fromkeys(pair.prompts, 0.0),
        },
        "checkpoint": {"every": 0, "best": False},
        "log": {"rollouts_every": 0},
    } | dict(changes or {})


TINY = {
    "hidden_size": 32,
    "layers": 2,
    "heads": 2,
    "kv_heads": 1,
    "intermediate_size": 64,
    "vocab_size": 320,
    "context": 64,
}


def _task(folder: Path, pair: Pair, task: str, seed: int) -> dict[str, Any]:
    path = folder / f"{task}.jsonl"
    rng = random.Random(f"{task} {seed}")
    rows = [
        {
            "prompt": pair.prompts[task].format(n=n),
            "answer": " ".join(rng.choice(pair.words) for _ in range(rng.randint(2, rewards.LONGEST))),
        }
        for n in range(ROWS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    function: Callable[..., Any] = getattr(rewards, task)
    source = f"{Path(rewards.__file__)}:{function.__name__}"
    keys = {"path": str(path), "rewards": [source], "oracle": "answer", "reward_range": [0.0, 1.0]}
    return {"kind": "function", "name": task, "eval_fraction": 0.25, **keys}
