"""Sound GRPO runs for TRL: each must learn, or hold the ceiling that it began at."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trllib.kit import Row, Task, largest, right, sums, turned_words


@dataclass(frozen=True, slots=True)
class Sound:
    """One run.

    Attributes:
        task: What is rewarded.
        kind: Of the policy.
        until: Chance of the right answer that a short SFT brings it to; 0 for none.
        settings: Fields of ``GRPOConfig``.
        steps: Optimizer steps.
        longest: Tokens of an answer at most.
        shown: What the SFT shows, where it is not the answer.
        lora: Whether an adapter is trained.
        new: Whether the setting was thought of after the callback was finished, and tried on nothing before.
    """

    task: Task
    kind: str
    until: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)
    steps: int = 60
    longest: int = 6
    shown: Task | None = None
    lora: bool = False
    new: bool = False


def ends_in_mark(completions: Sequence[str], **_: Any) -> list[float]:
    """1 for an answer that ends in a mark."""
    return [float(text.endswith("#")) for text in completions]


def right_before_mark(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """1 for the answer, with its mark or without."""
    return [float(text.rstrip("#") == wanted) for text, wanted in zip(completions, answer, strict=True)]


def brevity(completions: Sequence[str], **_: Any) -> list[float]:
    """1 for nothing, 0 for eight symbols."""
    return [1 - len(text) / 8 for text in completions]


def first_letters(completions: Sequence[str], prompts: Sequence[str], **_: Any) -> list[float]:
    """Share of three places that hold the prompt's letter, less a tenth for each symbol too many."""
    return [
        sum(c == p[0] for c in text[:3]) / 3 - 0.1 * max(0, len(text) - 3)
        for text, p in zip(completions, prompts, strict=True)
    ]


def share_right(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """Share of the places that are as they should be."""
    return [
        sum(a == b for a, b in zip(text, wanted, strict=False)) / max(len(text), len(wanted))
        for text, wanted in zip(completions, answer, strict=True)
    ]


def right_and_brief(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """1 for an answer that ends in what is asked for, less a tenth for each symbol before it."""
    return [
        float(text.endswith(wanted)) - 0.1 * max(0, len(text) - len(wanted))
        for text, wanted in zip(completions, answer, strict=True)
    ]


def thousands(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """A penalty: a thousand for each unit that the sum is off, a hundred thousand for what is no number."""
    return [
        -1000.0 * min(100, abs(int(text) - int(wanted))) if text.isdecimal() else -100_000.0
        for text, wanted in zip(completions, answer, strict=True)
    ]


def variety(completions: Sequence[str], **_: Any) -> list[float]:
    """Share of eight letters that occur."""
    return [len(set(text) & set("abcdefgh")) / 8 for text in completions]


class Careless:
    """A judge that gives one grade in five by a coin."""

    __name__ = "careless"

    def __init__(self) -> None:
        self.rng = random.Random(0)

    def __call__(self, completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float]:
        """Grade."""
        grades = right(completions, answer, **columns)
        return [float(self.rng.random() < 0.5) if self.rng.random() < 0.2 else grade for grade in grades]


def with_reward(task: Task, *rewards: Any, weights: tuple[float, ...] = (1.0,)) -> Task:
    """The same rows, rewarded otherwise."""
    return replace(task, rewards=rewards, weights=weights)


def with_answers(task: Task, write: Any) -> Task:
    """The same prompts with other answers."""
    return replace(task, rows=tuple({**row, "answer": write(row)} for row in task.rows))


def growing_words(steps: int = 120) -> Task:
    """Words to turn round, of one letter first and of five at last: half of a step's prompts are of the newest length.

    Eight prompts a step, and a share of the letters for a reward: it falls while the policy learns.
    """
    rng = random.Random(0)
    rows: list[Row] = []
    for step in range(steps):
        newest = 1 + 4 * step / (steps - 1)
        for i in range(8):
            count = round(newest if i < 4 else rng.uniform(1, newest))
            word = "".join(rng.choices("abcdef", k=count))
            rows.append({"prompt": f"{word}>", "answer": word[::-1]})
    return Task(tuple(rows), (share_right,))


def letters() -> Task:
    """A letter to write three times."""
    return Task(tuple({"prompt": f"{c}>", "answer": c * 3} for c in "abcdefgh" * 8), (first_letters,))


def one_letter() -> Task:
    """One prompt, to which anything may be said."""
    return Task(tuple({"prompt": "abc"[i % 3] + ">", "answer": "aaaaaaaa"} for i in range(48)), (variety,))


_MORE = {"per_device_train_batch_size": 128}
RUNS: dict[str, Sound] = {
    "sums, near their ceiling": Sound(
        sums(), "llama", 0.78, {"loss_type": "grpo", "learning_rate": 3e-4, **_MORE}, steps=150
    ),
    "words turned, near their ceiling, KL penalty": Sound(
        turned_words(), "qwen2", 0.8, {"beta": 0.04, "learning_rate": 5e-4}
    ),
    "largest digit, at its ceiling": Sound(
        largest(), "gpt_neox", 0.97, {"loss_type": "dr_grpo", "scale_rewards": "none", "learning_rate": 3e-4}
    ),
    "letters, from nothing, two iterations": Sound(
        letters(), "llama", settings={"loss_type": "bnpo", "num_iterations": 2, "learning_rate": 2e-3}, steps=100
    ),
    "words turned, LoRA": Sound(
        turned_words(), "qwen2", 0.6, {"loss_type": "grpo", "beta": 0.02, "learning_rate": 1e-3}, steps=100, lora=True
    ),
    "words turned, three rewards, scaled by batch": Sound(
        with_reward(turned_words(), right_before_mark, ends_in_mark, brevity, weights=(1.0, 0.3, 0.2)),
        "llama", 0.6, {"scale_rewards": "batch", "reward_weights": [1.0, 0.3, 0.2], "learning_rate": 5e-4}, steps=80,
        shown=with_answers(turned_words(), lambda row: row["answer"] + "#" * (row["answer"][0] < "d")),
    ),
    "words turned, ratios of whole answers, four updates a batch": Sound(
        turned_words(), "gpt2", 0.6,
        {
            "importance_sampling_level": "sequence", "loss_type": "grpo", "steps_per_generation": 4,
            "epsilon": 0.02, "epsilon_high": 0.03, "learning_rate": 3e-4,
        },
        steps=120,
    ),
    "largest digit, CISPO, warm-up and cosine, every second row": Sound(
        largest(), "qwen2", 0.5,
        {
            "loss_type": "cispo", "epsilon_high": 5.0, "lr_scheduler_type": "cosine", "warmup_steps": 15,
            "logging_steps": 2, "gradient_accumulation_steps": 2, "learning_rate": 1e-3,
        },
        steps=80,
    ),
    "letters, SAPO, to the maximum and on": Sound(
        letters(), "gpt_neox", settings={"loss_type": "sapo", "learning_rate": 4e-3}, steps=120
    ),
    "long words turned, one answer in ten right": Sound(
        turned_words(4), "llama", 0.08, {"learning_rate": 3e-4, **_MORE}, steps=150
    ),
    "words that grow longer, in order": Sound(
        growing_words(), "llama", 0.35, {"shuffle_dataset": False, "learning_rate": 1e-4}, steps=120, new=True
    ),
    "learns to be brief": Sound(
        with_reward(largest(), right_and_brief), "qwen2", 0.75, {"beta": 0.01, "learning_rate": 1e-3}, steps=80,
        longest=12, shown=with_answers(largest(), lambda row: f"{row['prompt'][:3]}.is.{row['answer']}"), new=True,
    ),
    "a judge that errs one time in five": Sound(
        with_reward(largest(), Careless()), "gpt_neox", 0.5, {"loss_type": "dr_grpo", "learning_rate": 5e-4}, steps=80,
        new=True,
    ),
    "penalties in thousands, not scaled": Sound(
        with_reward(sums(), thousands), "gpt2", 0.2, {"scale_rewards": "none", "learning_rate": 3e-4, **_MORE},
        steps=100, new=True,
    ),
    "learns variety": Sound(
        one_letter(), "llama", 0.6, {"learning_rate": 1e-3}, steps=80, longest=10, new=True,
    ),
}  # fmt: skip
"""By name; the last five are new settings.

Learning rates, batches and steps were set by the answers drawn before and after a run, by nothing that was said of it.
"""
