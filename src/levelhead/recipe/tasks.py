"""``tasks``: what is learnt.  One variant a kind, each with only the keys it uses."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from levelhead.recipe.base import Section


class TaskSection(Section):
    """What every task has."""

    name: str | None = None
    """Name in metrics and reports; the kind unless given.  Two tasks of one kind need two names."""
    weight: float = Field(1.0, gt=0)
    """Share of the prompts of a batch, relative to the other tasks."""
    kl: float | None = Field(None, ge=0)
    """KL coefficient of this task; ``grpo.kl.coef`` unless given."""
    eval_fraction: float = Field(0.1, gt=0, lt=1)
    """Share of the items kept for evaluation; split by item, so that variants of one item stay together."""
    limit: int | None = Field(None, ge=1)
    """Use at most this many items."""


class Fairness(TaskSection):
    """Multiple-choice questions about people with a one-sentence justification (BBQ, Parrish et al. 2022)."""

    kind: Literal["fairness"]
    """``fairness``."""
    path: str | list[str] | None = None
    """BBQ JSONL file, files, or folder of ``*.jsonl``; a built-in generator in the same schema unless given."""
    items: int = Field(2000, ge=10)
    """Items that the built-in generator makes."""


class Faithfulness(TaskSection):
    """Answers with quoted evidence (HaluEval, Li et al. 2023)."""

    kind: Literal["faithfulness"]
    """``faithfulness``."""
    path: str | list[str] | None = None
    """HaluEval JSON-lines file, files, or folder of ``*.json``; a built-in generator unless given."""
    items: int = Field(2000, ge=10)
    """Items that the built-in generator makes."""


class Math(TaskSection):
    """Word problems with an exact numeric answer (GSM8K, Cobbe et al. 2021)."""

    kind: Literal["math"]
    """``math``."""
    path: str | list[str] | None = None
    """GSM8K JSONL (``question``, ``answer`` ending in ``#### N``); a built-in generator unless given."""
    items: int = Field(2000, ge=10)
    """Items that the built-in generator makes."""


class Function(TaskSection):
    """Your own data and reward functions, with TRL's signature."""

    kind: Literal["function"]
    """``function``."""
    path: str | None = None
    """JSONL, CSV or Parquet file, or the name of a Hugging Face data set; an in-memory data set from Python."""
    dataset_config: str | None = None
    """Configuration of a hub data set."""
    dataset_split: str = "train"
    """Split of a hub data set."""
    prompt: str = "prompt"
    """Column with the prompt: text or a list of chat messages."""
    system: str | None = None
    """System message put before every prompt."""
    oracle: str | None = None
    """Column with a perfect answer, for SFT."""
    rewards: list[str] = Field(default_factory=list)
    """Reward functions as ``file.py:name``; Python callables through the API."""
    reward_weights: list[float] | None = None
    """One weight a reward; 1 each unless given."""
    on_reward_error: Literal["stop", "drop"] = "stop"
    """A reward that raises or returns None or a non-finite value: ``stop`` the run, or ``drop`` and count it."""


TaskRecipe = Annotated[Fairness | Faithfulness | Math | Function, Field(discriminator="kind")]
